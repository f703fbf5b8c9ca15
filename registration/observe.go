package registration

import (
	"fmt"
	"time"
)

// Observe tells the Keeper what a Mirror saw on a subject, so that it knows what its next
// message comes after, and notices who writes over its entries.
func (k *Keeper) Observe(m Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.slots[m.Subject]
	if s == nil || s.busy || m.Sequence <= s.seq {
		return
	}
	s.saw(m.Sequence, m.Origin == k.opts.Origin)
	if s.want == nil || !s.there || s.ours && s.isWhat(m) {
		return
	}
	k.counts.Disputes++
	k.log.Warn("somebody else has written over an entry of ours", "subject", m.Subject, "origin", fmt.Sprintf("%.80q", m.Origin))
	if pause := time.Now().Add(disputePause); pause.Before(s.due) || s.index < 0 {
		s.there = false
		k.scheduleLocked(s, pause)
		k.poke()
	}
}

// Lost tells the Keeper that a Mirror saw the end of an entry: it is published again when
// it is desired.
func (k *Keeper) Lost(d Departure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.slots[d.Subject]
	if s == nil || s.want == nil || d.Sequence != 0 && d.Sequence <= s.seq {
		return
	}
	s.there = false
	if s.busy {
		s.version++ // whatever its worker does may have been before that
		return
	}
	s.saw(d.Sequence, false)
	k.scheduleLocked(s, time.Now())
	k.poke()
}

// compare takes in what a Mirror that is up to date has seen. What it should have seen by now and has
// not was gone again before it looked; what it has seen of ours and nobody desires is a stray.
func (k *Keeper) compare(seen map[string]sight) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for subject, s := range k.slots {
		if s.want != nil && s.there && !s.busy && now.Sub(s.wrote) >= unseenPause && !seen[subject].entry {
			s.there = false
			k.scheduleLocked(s, now)
		}
	}
	var strays []string
	for subject, saw := range seen {
		if saw.ours && k.isStrayLocked(subject) {
			strays = append(strays, subject)
			k.setLocked(subject, nil) // which looks whose it is before it removes it
		}
	}
	if len(strays) > 0 {
		k.log.Warn("entries that say they are ours, and that nobody desires, are removed from the discovery feed", "count", len(strays), "subjects", strays[:min(10, len(strays))])
	}
	k.poke()
}

// isStrayLocked tells whether an entry of ours on a subject is one that nobody desires.
func (k *Keeper) isStrayLocked(subject string) bool {
	return k.spared != nil && !k.spared[subject] && k.slots[subject] == nil
}
