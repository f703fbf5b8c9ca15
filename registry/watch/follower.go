package watch

import (
	"context"
	"errors"
	"time"

	"github.com/muster-cloud/muster"
)

// ErrBehind is what Next returns when the log has to be read first: call Load,
// then Next again.
var ErrBehind = errors.New("the log has to be read first")

// Item is what a follower has next. It makes an event when one is needed: shared
// payloads need none.
type Item struct {
	Type     muster.EventType // empty: nothing is due
	Change   *muster.Change   // nil on SYNCED and PROGRESS
	Left     bool
	Position muster.Position // the place after it; that of the snapshot on PRESENT
	Source   Source          // of a CHANGE
	Epoch    string
}

// Event makes the event. SYNCED and PROGRESS get the time now.
func (i Item) Event(now time.Time) *muster.Event {
	e := &muster.Event{Change: i.Change, Type: i.Type, Left: i.Left}
	if i.Type != muster.EventPresent {
		e.Resume = &muster.Cursor{Epoch: i.Epoch, Position: i.Position}
	}
	if e.Change == nil {
		e.Change = &muster.Change{Revision: i.Position.Revision, Epoch: i.Epoch, Batch: i.Position.Tag, At: now.UTC()}
	}
	return e
}

// phase is how far a follower has come.
type phase int

const (
	presenting phase = iota // the present state
	replaying               // what was missed
	live
)

// Follower is one subscription's place. It is for one caller at a time.
type Follower struct {
	scan    *Scan
	history uint64
	pos     muster.Position
	target  muster.Position // where SYNCED is due
	phase   phase
	present func() (*muster.Change, bool)
	last    time.Time // of the last item
}

// Follow begins a subscription on a shared scan: at the cursor (checked),
// or at the present state, or at now.
func (s *Scan) Follow(ctx context.Context, r Request) (*Follower, error) {
	f := &Follower{scan: s, phase: replaying, last: time.Now()}
	at := s.hub.snapshot()
	f.history, f.pos, f.target = at.history, at.head, at.head
	switch {
	case r.Since != nil:
		pos, err := s.hub.Check(ctx, *r.Since)
		if err != nil {
			return nil, err
		}
		f.pos = pos
		f.target = later(pos, at.head)
	case r.Initial && s.spec.Snapshot != nil:
		f.pos, f.present = s.spec.Snapshot()
		f.target = f.pos
		f.phase = presenting
	}
	return f, nil
}

// Next returns what comes next, without waiting; an Item without a type when
// nothing is due. ErrBehind: call Load first. Any other error is the end.
func (f *Follower) Next(now time.Time) (Item, error) {
	at := f.scan.hub.snapshot()
	if at.history != f.history {
		return Item{}, at.replaced()
	}
	if f.phase == presenting {
		if c, ok := f.present(); ok {
			f.last = now
			return Item{Type: muster.EventPresent, Change: c, Position: f.pos, Epoch: at.epoch}, nil
		}
		f.present, f.phase = nil, replaying
	}
	if f.phase == replaying && f.pos.Revision >= f.target.Revision {
		return f.synced(at, now), nil
	}
	found, source, upTo, err := f.scan.next(at, f.pos)
	if err != nil {
		f.pos = upTo
		return Item{}, err
	}
	if f.phase == replaying && (found.change == nil || upTo.Revision > f.target.Revision) {
		f.pos = f.target
		return f.synced(at, now), nil
	}
	f.pos = upTo
	if found.change != nil {
		f.last = now
		return Item{Type: muster.EventChange, Change: found.change, Left: found.left, Position: upTo, Source: source, Epoch: at.epoch}, nil
	}
	if now.Sub(f.last) >= f.scan.hub.options.Progress {
		f.last = now
		return Item{Type: muster.EventProgress, Position: f.pos, Epoch: at.epoch}, nil
	}
	return Item{}, nil
}

func (f *Follower) synced(at state, now time.Time) Item {
	f.phase, f.last = live, now
	return Item{Type: muster.EventSynced, Position: f.pos, Epoch: at.epoch}
}

// Load reads what ErrBehind asked for. It waits for the log and may be called
// while nobody calls Next. UNAVAILABLE when the log cannot be read.
func (f *Follower) Load(ctx context.Context) error {
	return f.scan.hub.load(ctx, f.history, f.pos.Revision)
}

// Due is when PROGRESS is due if nothing comes before.
func (f *Follower) Due() time.Time { return f.last.Add(f.scan.hub.options.Progress) }

func later(a, b muster.Position) muster.Position {
	if a.Revision > b.Revision {
		return a
	}
	return b
}
