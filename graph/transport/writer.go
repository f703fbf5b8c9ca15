package transport

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster/registry/watch"
)

// keptFrame is the largest frame whose memory the writer keeps.
const keptFrame = 16 << 10

// writer is the goroutine that writes to a connection. It takes what is due when
// the socket accepts it: the messages that wait, and in turn the next payload of
// each subscription.
type writer struct {
	c       *conn
	members []*member
	turn    int // whose it is
	frame   []byte
	behind  *member       // the one that is being caught up
	caught  chan error    // that it has been
	now     chan struct{} // closed: does not wait
}

func newWriter(c *conn) *writer {
	w := &writer{c: c, caught: make(chan error, 1), now: make(chan struct{})}
	close(w.now)
	return w
}

func (w *writer) run(ctx context.Context) {
	pings := time.NewTicker(w.c.h.options.Ping)
	defer pings.Stop()
	progress := time.NewTimer(time.Hour)
	defer progress.Stop()
	for {
		changed := w.c.h.hub.Changed() // taken before looking, so that nothing is missed
		busy, err := w.deliver(ctx, time.Now())
		if busy {
			changed = w.now
		} else {
			progress.Reset(w.idle(time.Now()))
		}
		if err == nil {
			err = w.next(ctx, changed, progress.C, pings.C)
		}
		if err != nil {
			w.abort(err)
			return
		}
	}
}

// next does one thing that waits to be done, or sleeps until there is one or a
// member may have something.
func (w *writer) next(ctx context.Context, changed <-chan struct{}, progress, pings <-chan time.Time) error {
	select {
	case <-changed:
	case <-progress:
	case <-w.c.wake:
	case m := <-w.c.control:
		return w.handle(m)
	case err := <-w.caught:
		return w.caughtUp(ctx, err)
	case <-pings:
		return w.ping()
	case <-w.c.leave:
		w.c.close(closeGoingAway, "Going away: the server shuts down")
	case <-ctx.Done():
	}
	return ctx.Err()
}

// idle is how long there is until a member has PROGRESS to tell.
func (w *writer) idle(now time.Time) time.Duration {
	idle := time.Hour
	for _, m := range w.members {
		if m != w.behind {
			idle = min(idle, max(0, m.follower.Due().Sub(now)))
		}
	}
	return idle
}

// abort ends the connection after a failed write, with a code for what it is worth.
func (w *writer) abort(err error) {
	if timedOut(err) {
		w.c.h.count.stalled.Add(1)
		w.c.close(closeTryAgain, "Too slow: nothing was read for a while")
	}
	w.c.cancel()
	_ = w.c.raw.SetReadDeadline(time.Now().Add(farewellTime))
}

// handle does what a message asks for.
func (w *writer) handle(m message) error {
	switch m.kind {
	case plain:
		return w.write(m.body)
	case joined:
		if m.op.ended.Load() {
			m.member.leave()
			return nil
		}
		w.members = append(w.members, m.member)
	case result:
		if !w.c.end(m.op) {
			return nil
		}
		if err := w.send(m.op, "next", m.body); err != nil {
			return err
		}
		return w.send(m.op, "complete", nil)
	case failure:
		if w.c.end(m.op) {
			return w.send(m.op, "error", m.body)
		}
	case event:
		if m.op.ended.Load() {
			return nil
		}
		w.c.h.count.deliveries.Add(1)
		err := w.send(m.op, "next", m.body)
		m.written <- struct{}{}
		return err
	case finished:
		if w.c.end(m.op) {
			return w.send(m.op, "complete", nil)
		}
	}
	return nil
}

// deliver writes the next due payload of the first member that has one, beginning
// with the one whose turn it is; false when none has.
func (w *writer) deliver(ctx context.Context, now time.Time) (bool, error) {
	for range w.members {
		if w.turn >= len(w.members) {
			w.turn = 0
		}
		m := w.members[w.turn]
		switch {
		case m == w.behind:
		case m.op.ended.Load():
			w.drop(m)
			return true, nil
		default:
			if delivered, err := w.deliverTo(ctx, m, now); delivered || err != nil {
				w.turn++
				return delivered, err
			}
		}
		w.turn++
	}
	return false, nil
}

func (w *writer) deliverTo(ctx context.Context, m *member, now time.Time) (bool, error) {
	item, err := m.follower.Next(now)
	switch {
	case errors.Is(err, watch.ErrBehind):
		w.catchUp(ctx, m)
		return false, nil
	case err != nil:
		return true, w.failMember(ctx, m, err)
	case item.Type == "":
		return false, nil
	}
	payload, err := m.group.payload(item, now)
	if err != nil {
		return true, w.failMember(ctx, m, err)
	}
	w.c.h.count.deliveries.Add(1)
	return true, w.send(m.op, "next", payload)
}

// catchUp has a block of the log read for a member, one at a time a connection.
// Next is not called on it meanwhile.
func (w *writer) catchUp(ctx context.Context, m *member) {
	if w.behind != nil {
		return
	}
	w.behind = m
	w.c.tasks.Go(func() { w.caught <- m.follower.Load(ctx) })
}

func (w *writer) caughtUp(ctx context.Context, err error) error {
	m := w.behind
	w.behind = nil
	if err != nil && ctx.Err() == nil {
		return w.failMember(ctx, m, err)
	}
	return ctx.Err()
}

// failMember ends a subscription with an error.
func (w *writer) failMember(ctx context.Context, m *member, err error) error {
	w.drop(m)
	if !w.c.end(m.op) {
		return nil
	}
	return w.send(m.op, "error", encodeJSON(w.c.h.failure(ctx, err)))
}

func (w *writer) drop(m *member) {
	if i := slices.Index(w.members, m); i >= 0 {
		w.members = slices.Delete(w.members, i, i+1)
	}
	m.leave()
}

func (w *writer) send(op *operation, name string, payload []byte) error {
	w.frame = appendMessage(w.frame[:0], op.quoted, name, payload)
	err := w.write(w.frame)
	if cap(w.frame) > keptFrame {
		w.frame = nil
	}
	return err
}

func (w *writer) write(b []byte) error { return w.c.ws.WriteMessage(websocket.TextMessage, b) }

func (w *writer) ping() error {
	return w.c.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(w.c.h.options.WriteStall))
}

// release gives up all memberships, also those that were never taken over. The
// connection's goroutines have ended.
func (w *writer) release() {
	for _, m := range w.members {
		m.leave()
	}
	for {
		select {
		case m := <-w.c.control:
			if m.member != nil {
				m.member.leave()
			}
		default:
			return
		}
	}
}
