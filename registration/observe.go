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

// compare finds what a Mirror that is up to date should have seen by now and has not: it was gone
// again before the Mirror looked.
func (k *Keeper) compare(seen func(subject string) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for subject, s := range k.slots {
		if s.want != nil && s.there && !s.busy && now.Sub(s.wrote) >= unseenPause && !seen(subject) {
			s.there = false
			k.scheduleLocked(s, now)
		}
	}
	k.poke()
}
