package registration

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"time"

	"github.com/muster-cloud/muster"
)

// slot is what a Keeper knows of one subject.
type slot struct {
	subject string
	want    *muster.Registration // nil: none
	version int                  // raised with each change of want
	there   bool                 // the feed is as desired, as far as we know
	seq     uint64               // of the last message on the subject, as far as we know
	ours    bool                 // that message is one of ours
	tried   bool                 // a message of ours may still be on its way
	busy    bool                 // a worker has it
	fails   int                  // in a row
	err     error                // why it was refused
	wrote   time.Time            // when it was last seen to be as desired
	due     time.Time
	index   int // in the agenda; -1: not in it
}

// job is what a worker does about a slot.
type job struct {
	subject string
	want    *muster.Registration
	version int
	seq     uint64
	ours    bool
	tried   bool
	refresh bool // the entry should be there already
	probe   bool // it finds out whether the feed is up again
}

func (s *slot) job() job {
	return job{subject: s.subject, want: s.want, version: s.version, seq: s.seq, ours: s.ours, tried: s.tried, refresh: s.there}
}

// deed is what a worker did.
type deed int

const (
	nothing deed = iota
	published
	refreshed
	removed
)

// outcome is what came of a job.
type outcome struct {
	did   deed
	seq   uint64
	known bool // seq is that of the subject's last message
	ours  bool // which is one of ours
	err   error
}

// learn takes what a job found out about the subject.
func (s *slot) learn(o outcome) {
	s.ours = o.ours
	switch {
	case errors.Is(o.err, ErrUnavailable) || errors.Is(o.err, errStopped):
		s.tried = true
	case o.known:
		s.saw(o.seq, o.ours)
	}
}

// saw notes the subject's last message. What of ours was on its way comes too late, unless it
// comes after that one.
func (s *slot) saw(seq uint64, ours bool) {
	s.tried = s.tried && seq == s.seq
	s.seq, s.ours = seq, ours
}

// isWhat tells whether a message is the entry that is desired.
func (s *slot) isWhat(m Message) bool {
	data, err := Encode(s.want)
	return err == nil && bytes.Equal(data, m.Data)
}

// perform does a job: one write, after a look when it isn't known what it comes after.
func (k *Keeper) perform(ctx context.Context, j job) outcome {
	if j.want == nil {
		return k.remove(ctx, j)
	}
	did := published
	if j.refresh {
		did = refreshed
		if j.want.TTL != nil && *j.want.TTL == muster.RegistrationTTLForever {
			if last, err := k.pub.Last(ctx, j.subject); err != nil || last != nil && last.Sequence == j.seq {
				return outcome{err: err, ours: err == nil}
			}
		}
	}
	seq, err := k.pub.Publish(ctx, j.want, j.seq)
	if errors.Is(err, ErrOvertaken) {
		return k.look(ctx, j, err)
	}
	return outcome{did: did, seq: seq, known: err == nil, ours: err == nil, err: err}
}

// look finds out what an overtaken message should come after; writing it is another job's,
// with what is desired by then.
func (k *Keeper) look(ctx context.Context, j job, overtaken error) outcome {
	last, err := k.pub.Last(ctx, j.subject)
	switch {
	case err != nil:
		return outcome{err: err}
	case last == nil:
		return outcome{known: true, err: overtaken}
	default:
		return outcome{seq: last.Sequence, known: true, ours: last.Origin == k.opts.Origin, err: overtaken}
	}
}

// remove takes an entry out, if it is ours.
func (k *Keeper) remove(ctx context.Context, j job) outcome {
	if !j.ours && k.pub.Kind() == JetStream {
		last, err := k.pub.Last(ctx, j.subject)
		if err != nil {
			return outcome{err: err}
		}
		if last == nil {
			last = &Message{Gone: Purged}
		}
		// A message of ours that comes after this one may still be on its way; only a marker stops it.
		late := j.tried && last.Sequence == j.seq
		switch {
		case last.Gone == "" && last.Origin != k.opts.Origin && late:
			return outcome{err: ErrOvertaken} // it is not ours to remove: look again
		case last.Gone == "" && last.Origin != k.opts.Origin, last.Gone != "" && !late:
			return outcome{did: nothing}
		}
		j.seq = last.Sequence
	}
	seq, err := k.pub.Remove(ctx, j.subject, j.seq)
	return outcome{did: removed, seq: seq, known: err == nil, ours: err == nil, err: err}
}

// agenda orders slots by when they are due.
type agenda struct{ slots agendaHeap }

func (a *agenda) first() *slot {
	if len(a.slots) == 0 {
		return nil
	}
	return a.slots[0]
}

// put adds a slot, or moves it to its new place.
func (a *agenda) put(s *slot) {
	if s.index >= 0 {
		heap.Fix(&a.slots, s.index)
		return
	}
	heap.Push(&a.slots, s)
}

func (a *agenda) remove(s *slot) { heap.Remove(&a.slots, s.index) }

// agendaHeap is what container/heap works on.
type agendaHeap []*slot

func (h agendaHeap) Len() int           { return len(h) }
func (h agendaHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

// Swap keeps the indexes right.
func (h agendaHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push adds the last element.
func (h *agendaHeap) Push(x any) {
	s := x.(*slot)
	s.index = len(*h)
	*h = append(*h, s)
}

// Pop removes the last element.
func (h *agendaHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	last.index = -1
	return last
}
