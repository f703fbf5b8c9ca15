package render

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// The pauses between a render that failed and the next one, if nothing changes meanwhile.
const (
	firstPause   = 2 * time.Second
	longestPause = time.Minute
)

// Run renders what is registered now, and again after each change, until ctx ends or the
// server refuses the watch for good. What fails is logged and tried again; a connection
// that is lost is made again, and the files stay meanwhile. The hooks of o are called, the
// rest of it is Run's own.
func (r *Renderer) Run(ctx context.Context, o client.WatchOptions) (err error) {
	if err := r.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	f := newFeed()
	o.Since, o.FromNow, o.StartOver = "", false, true
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.source.WatchRegistrations(ctx, nil, o, f.take) })
	g.Go(func() error { return r.keep(ctx, f) })
	return g.Wait()
}

// keep renders after changes, and again after a pause when that failed.
func (r *Renderer) keep(ctx context.Context, f *feed) error {
	pauses := &backoff.ExponentialBackOff{InitialInterval: firstPause, MaxInterval: longestPause, Multiplier: 2, RandomizationFactor: 0.2}
	pauses.Reset()
	var again <-chan time.Time // nil: nothing failed
	var last string
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again:
		case <-f.changed:
			if err := r.settle(ctx, f); err != nil {
				return err
			}
		}
		err := r.follow(ctx, f)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		again = nil
		if err != nil {
			again = time.After(pauses.NextBackOff())
		} else {
			pauses.Reset()
		}
		last = r.tell(err, last)
	}
}

// settle waits until nothing has changed for a while.
func (r *Renderer) settle(ctx context.Context, f *feed) error {
	quiet, longest := time.NewTimer(r.opts.Quiet), time.NewTimer(r.opts.Longest)
	defer quiet.Stop()
	defer longest.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.changed:
			quiet.Reset(r.opts.Quiet)
		case <-quiet.C:
			return nil
		case <-longest.C:
			return nil
		}
	}
}

// follow renders what the feed has. Whether it is complete is asked until it was, once:
// later a feed that cannot be reached takes nothing away that is known.
func (r *Renderer) follow(ctx context.Context, f *feed) error {
	a := f.answer()
	if !r.whole {
		// Of interest is only what the answer says of itself: it is kept short.
		asked, err := r.source.Registrations(ctx, muster.RegistrationFilter{Service: "none"}, false)
		if err != nil {
			return err
		}
		a.Complete, a.AsOf = asked.Complete, asked.AsOf
		r.whole = a.Complete
	}
	a.Complete = r.whole
	return r.pass(ctx, a)
}

// tell logs what went wrong, once as long as it is the same, and when it no longer does.
func (r *Renderer) tell(err error, last string) string {
	switch {
	case err == nil && last != "":
		r.opts.Log.Info("all files are as they should be again")
	case err != nil && err.Error() != last:
		for _, problem := range Problems(err) {
			attrs := []any{"err", problem}
			if e, ok := errors.AsType[*Error](problem); ok {
				attrs = append(attrs, "file", e.File, "kind", e.Kind, "output", e.Output)
			}
			r.opts.Log.Error("a file was not rendered", attrs...)
		}
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// Problems takes an error apart that joins others.
func Problems(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, one := range joined.Unwrap() {
		out = append(out, Problems(one)...)
	}
	return out
}
