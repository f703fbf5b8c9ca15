package client

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// The pauses between a watch's connections: each is half to one and a half
// times the last one's double, from the first to the longest.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 15 * time.Second
	// steady is how long a connection that brought nothing new has to last to
	// count as progress, after which the pauses begin small again.
	steady = 30 * time.Second
)

// WatchOptions are the settings of one watch; the zero value begins with the
// present state.
type WatchOptions struct {
	Since     string // resume after this cursor; default begin with the present state, or at now
	FromNow   bool   // without Since: leave the present state out; default false
	StartOver bool   // the log no longer reaches back to the cursor: begin anew after an EventRestart; default end with COMPACTED

	OnConnect    func()                               // a connection is up and the subscription sent; default nothing
	OnDisconnect func(err error, pause time.Duration) // a connection was lost or did not come about; the next try is after pause
}

// WatchHealth delivers changes of health to each, in order, until ctx ends, each
// returns an error (which WatchHealth returns as it is), or the server refuses for
// good. A nil filter selects all. A connection that is lost is made again, and the
// watch resumes after the last event that each has returned from; that holds for
// the very first connection too. While each runs nothing else is read.
func (c *Client) WatchHealth(ctx context.Context, filter *muster.HealthFilter, o WatchOptions, each func(Event) error) error {
	return c.watch(ctx, subscription{"WatchHealth", operations.WatchHealth_Operation, given(filter)}, o, each)
}

// WatchNodes delivers every change of nodes; see WatchHealth.
func (c *Client) WatchNodes(ctx context.Context, filter *muster.NodeFilter, o WatchOptions, each func(Event) error) error {
	return c.watch(ctx, subscription{"WatchNodes", operations.WatchNodes_Operation, given(filter)}, o, each)
}

// WatchInstances delivers every change of instances; see WatchHealth.
func (c *Client) WatchInstances(ctx context.Context, filter *muster.InstanceFilter, o WatchOptions, each func(Event) error) error {
	return c.watch(ctx, subscription{"WatchInstances", operations.WatchInstances_Operation, given(filter)}, o, each)
}

// WatchServices delivers every change of services; see WatchHealth.
func (c *Client) WatchServices(ctx context.Context, filter *muster.ServiceFilter, o WatchOptions, each func(Event) error) error {
	return c.watch(ctx, subscription{"WatchServices", operations.WatchServices_Operation, given(filter)}, o, each)
}

// WatchRegistrations delivers what is registered in the discovery feed and what is removed
// from it; see WatchHealth.
func (c *Client) WatchRegistrations(ctx context.Context, filter *muster.RegistrationFilter, o WatchOptions, each func(Event) error) error {
	return c.watch(ctx, subscription{"WatchRegistrations", operations.WatchRegistrations_Operation, given(filter)}, o, each)
}

// given keeps a nil filter from becoming an interface that is not nil.
func given[T any](filter *T) any {
	if filter == nil {
		return nil
	}
	return filter
}

// subscription is what a watch asks for.
type subscription struct {
	name     string // of the operation
	document string
	filter   any // nil: none
}

// watcher is one watch across its connections.
type watcher struct {
	client  *Client
	what    subscription
	options WatchOptions
	each    func(Event) error

	cursor   string // resume after it; empty before the first
	partial  bool   // part of the present state was delivered, and no cursor yet
	void     bool   // what was delivered is void: an EventRestart is due
	progress bool   // the cursor moved on the present connection
}

func (c *Client) watch(ctx context.Context, what subscription, o WatchOptions, each func(Event) error) error {
	w := &watcher{client: c, what: what, options: o, each: each, cursor: o.Since}
	pauses := &backoff.ExponentialBackOff{
		InitialInterval: firstPause, MaxInterval: longestPause, Multiplier: 2, RandomizationFactor: 0.5,
	}
	pauses.Reset()
	for {
		began := time.Now()
		w.progress, w.partial = false, false
		err := w.connection(ctx)
		w.void = w.void || w.partial
		if ctx.Err() != nil {
			return ctx.Err()
		}
		loss, ok := errors.AsType[*lostError](err)
		if !ok {
			return unwrapCallback(err)
		}
		if w.progress || time.Since(began) >= steady {
			pauses.Reset()
		}
		pause := pauses.NextBackOff()
		if o.OnDisconnect != nil {
			o.OnDisconnect(loss.err, pause)
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// connection follows the subscription on one connection. It returns a
// *lostError when another one may do better.
func (w *watcher) connection(ctx context.Context) error {
	s, err := w.client.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.subscribe(w.what.name, w.what.document, w.variables()); err != nil {
		return err
	}
	if w.options.OnConnect != nil {
		w.options.OnConnect()
	}
	for {
		event, err := s.next(ctx)
		if muster.CodeOf(err) == muster.Compacted && w.options.StartOver && w.cursor != "" {
			w.cursor, w.void = "", true
			return &lostError{err}
		}
		if err != nil {
			return err
		}
		if err := w.deliver(event); err != nil {
			return &callbackError{err}
		}
	}
}

func (w *watcher) variables() map[string]any {
	v := map[string]any{}
	if w.cursor != "" {
		v["since"] = w.cursor
	} else {
		v["initial"] = !w.options.FromNow
	}
	if w.what.filter != nil {
		v["filter"] = w.what.filter
	}
	return v
}

// deliver hands an event over and only then remembers its cursor, so that an
// event that was not taken does not count as delivered.
func (w *watcher) deliver(event Event) error {
	if w.void {
		w.void = false
		if err := w.each(Event{Type: EventRestart}); err != nil {
			return err
		}
	}
	if err := w.each(event); err != nil {
		return err
	}
	if event.Cursor == "" {
		w.partial = w.cursor == ""
		return nil
	}
	w.progress = w.progress || event.Cursor != w.cursor
	w.cursor, w.partial = event.Cursor, false
	return nil
}

// lostError is the loss of a connection that another one may make good.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// callbackError is what the caller's function returned: final whatever it is.
type callbackError struct{ err error }

func (e *callbackError) Error() string { return e.err.Error() }

func unwrapCallback(err error) error {
	if own, ok := err.(*callbackError); ok {
		return own.err
	}
	return err
}

// sleep waits and reports whether ctx went on for as long.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
