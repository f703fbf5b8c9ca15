package registration

import (
	"fmt"
	"time"
)

// Refused returns the entries that the feed does not take, and why.
func (k *Keeper) Refused() map[string]error {
	k.mu.Lock()
	defer k.mu.Unlock()
	refused := map[string]error{}
	for subject, s := range k.slots {
		if s.err != nil {
			refused[subject] = s.err
		}
	}
	return refused
}

// Flaw says which entries the feed does not take, and since when; empty: it takes all.
func (k *Keeper) Flaw() (string, time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refused == 0 {
		return "", time.Time{}
	}
	var first *slot // the same one each time
	for _, s := range k.slots {
		if s.err != nil && (first == nil || s.subject < first.subject) {
			first = s
		}
	}
	return fmt.Sprintf("%d of the entries are not taken, such as %s: %v", k.refused, first.subject, first.err), k.since
}

// refuseLocked notes that an entry was refused, and returns how long to leave it. The first is a
// warning: what is wrong with all would be ten thousand.
func (k *Keeper) refuseLocked(s *slot, err error) time.Duration {
	switch {
	case k.refused == 0:
		k.log.Warn("the discovery feed refuses an entry", "subject", s.subject, "err", err)
	case s.err == nil:
		k.log.Debug("the discovery feed refuses another entry", "subject", s.subject, "err", err)
	}
	k.markLocked(s, err)
	s.fails++
	return min(refusedFirst<<min(s.fails-1, 10), refusedMost)
}

// markLocked notes why an entry is refused, nil for one that is not.
func (k *Keeper) markLocked(s *slot, err error) {
	switch before := s.err != nil; {
	case !before && err != nil:
		if k.refused++; k.refused == 1 {
			k.since = time.Now()
		}
	case before && err == nil:
		if k.refused--; k.refused == 0 {
			k.log.Info("the discovery feed takes every entry again")
		}
	}
	s.err = err
}
