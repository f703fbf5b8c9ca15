package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-memdb"

	"github.com/muster-cloud/muster"
)

// Mutation reads a view and says what to write, or why not. It must not write
// anything itself, and may be run more than once.
type Mutation func(View, *Writes) error

// call is a mutation with someone who waits for it.
type call struct {
	actor    muster.Actor
	mutation Mutation
	done     chan outcome // with room for one, so that nobody blocks the committer
}

type outcome struct {
	revision int64
	err      error
}

// committer runs mutations, many to a database transaction. There is one.
type committer struct {
	store    Store
	log      *slog.Logger
	now      func() time.Time
	seen     func(muster.NodeUID) time.Time // when a node was last heard of
	limit    int
	ports    portRange
	queue    chan call
	db       atomic.Pointer[memdb.MemDB]
	settle   func(b *batch)                  // runs inside the batch, after each mutation
	hear     func(b *batch)                  // once it is durable or may be, before it is visible
	announce func(b *batch)                  // after the batch has become visible
	recover  func(ctx context.Context) error // loads memory again

	expected int // how many callers there were lately

	ready   atomic.Bool   // false while memory is being loaded again
	stopped chan struct{} // closed when nothing is accepted any more

	commits, calls, splits, failures, reloads atomic.Int64
}

// submit waits for the mutation's outcome. A caller that leaves early rolls
// nothing back.
func (c *committer) submit(ctx context.Context, actor muster.Actor, m Mutation) (int64, error) {
	if !c.ready.Load() {
		return 0, unavailable("the state is being loaded from the database again")
	}
	call := call{actor: actor, mutation: m, done: make(chan outcome, 1)}
	select {
	case c.queue <- call:
	case <-ctx.Done():
		return 0, unavailable("it waited too long for its turn")
	case <-c.stopped:
		return 0, unavailable("the server is stopping")
	}
	select {
	case o := <-call.done:
		return o.revision, o.err
	case <-ctx.Done():
		return 0, unavailable("the caller stopped waiting for the commit")
	case <-c.stopped:
		select {
		case o := <-call.done:
			return o.revision, o.err
		default:
			return 0, unavailable("the server is stopping")
		}
	}
}

func unavailable(why string) *muster.Error {
	return muster.Errorf(muster.Unavailable, "%s; it may or may not have happened: try again with the same requestId", why)
}

// run commits until ctx ends, then finishes the batch that it is in.
func (c *committer) run(ctx context.Context) error {
	defer close(c.stopped)
	for {
		select {
		case <-ctx.Done():
			return nil
		case first := <-c.queue:
			c.commit(context.WithoutCancel(ctx), c.gather(first))
		}
		if !c.ready.Load() {
			c.reload(ctx)
		}
	}
}

// gather takes what is waiting, up to the bound. Callers that the last batches
// answered are about to ask again: they get a moment to do so, which lets a
// transaction carry half as much again. A lone caller has nobody to wait for.
func (c *committer) gather(first call) []call {
	calls := c.drain(append(make([]call, 0, min(c.limit, len(c.queue)+1)), first))
	for turns := 0; len(calls) < c.expected && turns < gatherTurns; turns++ {
		runtime.Gosched()
		calls = c.drain(calls)
	}
	c.expected = min(c.limit, max(len(calls), c.expected-c.expected/8-1))
	return calls
}

// gatherTurns is how many turns of the processor a batch gives to as many callers
// as there were lately: a fraction of a millisecond. Turns and no clock, which may stand still.
const gatherTurns = 2000

func (c *committer) drain(calls []call) []call {
	for len(calls) < c.limit {
		select {
		case next := <-c.queue:
			calls = append(calls, next)
		default:
			return calls
		}
	}
	return calls
}

// commit makes one database transaction of the calls and answers them. Nothing
// is visible or answered before it is durable.
func (c *committer) commit(ctx context.Context, calls []call) {
	b := newBatch(c.db.Load(), c.now(), c.seen)
	b.ports = c.ports
	defer b.txn.Abort() // no effect after a commit
	outcomes := make([]outcome, len(calls))
	for i, call := range calls {
		err := b.run(call.actor, call.mutation)
		outcomes[i] = outcome{b.meta.head.Revision, err}
		if err == nil {
			c.settle(b)
		}
	}
	err := c.write(ctx, b)
	c.calls.Add(int64(len(calls)))
	switch {
	case err == nil:
		if !b.empty() {
			c.hear(b)
			b.finish()
			c.announce(b)
		}
		for i, call := range calls {
			call.done <- c.present(outcomes[i])
		}
	case errors.Is(err, muster.ErrOutcomeUnknown):
		c.ready.Store(false)
		c.hear(b)
		c.log.Error("the outcome of a commit is unknown; loading the state again", "err", err)
		refuse(calls, unavailable("the database did not say whether it committed"))
	case muster.CodeOf(err) == muster.Unavailable:
		c.failures.Add(1)
		c.log.Warn("a commit failed", "calls", len(calls), "err", err)
		refuse(calls, err)
	case len(calls) > 1:
		b.txn.Abort()
		c.splits.Add(1)
		c.log.Warn("a batch was refused; committing its calls one by one", "calls", len(calls), "err", err)
		c.split(ctx, calls)
	default:
		c.failures.Add(1)
		refuse(calls, fmt.Errorf("commit: %w", err))
	}
}

// split commits the calls one by one, so that an offender harms only itself.
func (c *committer) split(ctx context.Context, calls []call) {
	for i := range calls {
		if !c.ready.Load() {
			refuse(calls[i:], unavailable("the state is being loaded from the database again"))
			return
		}
		c.commit(ctx, calls[i:i+1])
	}
}

func (c *committer) write(ctx context.Context, b *batch) error {
	if !b.durable() {
		return nil
	}
	rows, err := b.rows()
	if err != nil {
		return err
	}
	c.commits.Add(1)
	return c.store.Commit(ctx, rows)
}

// present logs what is not for callers; the transport hides it.
func (c *committer) present(o outcome) outcome {
	if o.err != nil && muster.CodeOf(o.err) == muster.Internal {
		c.log.Error("a mutation failed", "err", o.err)
	}
	return o
}

func refuse(calls []call, err error) {
	for _, call := range calls {
		call.done <- outcome{err: err}
	}
}

// reload loads memory again, for as long as it takes.
func (c *committer) reload(ctx context.Context) {
	const longest = 5 * time.Second
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, longest) {
		err := c.recover(ctx)
		if err == nil {
			c.reloads.Add(1)
			c.ready.Store(true)
			return
		}
		c.log.Error("loading the state again failed; trying again", "err", err, "wait", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
