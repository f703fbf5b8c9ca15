package watch

import (
	"context"
	"errors"
	"time"

	"github.com/muster-cloud/muster"
)

// Spec is what a subscription wants to see; the registry makes it. It is shared
// by all who want the same, for as long as any of them is there.
type Spec struct {
	// Match tells whether a change is delivered, and whether that is because the
	// object has left: it no longer matches, or is gone. The answer depends on the
	// change alone.
	Match func(*muster.Change) (deliver, left bool)
	// Snapshot returns the present state as made-up changes, pulled one by one
	// from something that does not change, and the position that it is of. Nil:
	// there is none.
	Snapshot func() (at muster.Position, next func() (*muster.Change, bool))
}

// Request is where a subscription begins: after Since, or else with the present
// state when Initial, or else now.
type Request struct {
	Since   *muster.Cursor
	Initial bool
}

// Stream is how a transport takes a subscription over from a resolver: it puts
// one into the context with WithStream, and Serve leaves the Spec there and
// returns the channel that the transport feeds.
type Stream struct {
	spec   Spec
	served bool
	events chan *muster.Event
}

type streamKey struct{}

// NewStream makes a stream for one execution of a subscription.
func NewStream() *Stream { return &Stream{events: make(chan *muster.Event, 1)} }

// WithStream returns a context in which Serve hands over to s.
func WithStream(ctx context.Context, s *Stream) context.Context {
	return context.WithValue(ctx, streamKey{}, s)
}

// Spec is what the resolver asked for, and whether it has asked.
func (s *Stream) Spec() (Spec, bool) { return s.spec, s.served }

// Feed gives the next event to whoever reads the channel. There is room for one:
// it has to be read before the next.
func (s *Stream) Feed(e *muster.Event) { s.events <- e }

// Serve is what resolvers call. Under a transport's Stream it hands over and
// returns at once. Otherwise it sends the events itself until ctx ends, each when
// it is taken, and closes the channel at the end; why it ended cannot be told
// over a channel: use Follow where that matters.
func (h *Hub) Serve(ctx context.Context, spec Spec, r Request) (<-chan *muster.Event, error) {
	if s, ok := ctx.Value(streamKey{}).(*Stream); ok {
		if s.served {
			return nil, errors.New("a stream carries one subscription")
		}
		s.spec, s.served = spec, true
		return s.events, nil
	}
	f, err := h.Scan(spec).Follow(ctx, r)
	if err != nil {
		return nil, err
	}
	events := make(chan *muster.Event)
	go func() {
		defer close(events)
		_ = f.run(ctx, func(e *muster.Event) error {
			select {
			case events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return events, nil
}

// Follow calls yield with each event until ctx ends, yield returns an error, or
// the subscription cannot go on (COMPACTED, UNAVAILABLE); it returns why.
func (h *Hub) Follow(ctx context.Context, spec Spec, r Request, yield func(*muster.Event) error) error {
	f, err := h.Scan(spec).Follow(ctx, r)
	if err != nil {
		return err
	}
	return f.run(ctx, yield)
}

func (f *Follower) run(ctx context.Context, yield func(*muster.Event) error) error {
	timer := time.NewTimer(time.Until(f.Due()))
	defer timer.Stop()
	for {
		changed := f.scan.hub.Changed()
		item, err := f.Next(time.Now())
		switch {
		case errors.Is(err, ErrBehind):
			if err := f.Load(ctx); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case item.Type != "":
			if err := yield(item.Event(time.Now())); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		timer.Reset(time.Until(f.Due()))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
