package agent_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
)

// router remembers the tags of the peers that it was given.
type router struct {
	mu   sync.Mutex
	tags []string
	err  error
}

func (r *router) Route(_ context.Context, peers *muster.Peers) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags = append(r.tags, peers.Tag)
	return r.err
}

func (r *router) since(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.tags[n:])
}

func (r *router) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func TestAgent_FetchesPeersOnlyWhenTheyMoved(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		r := &router{}
		w.router = r
		w.cloud.peers.Tag = "one"
		w.start()
		if got := r.since(0); !slices.Equal(got, []string{"one"}) {
			t.Errorf("with the registration it routed by %v", got)
		}
		pass(10 * time.Minute)
		if n := len(w.cloud.times("Peers")); n != 1 {
			t.Errorf("in an idle cluster it asked for the peers %d times", n)
		}
		if got := r.since(0); len(got) < 60 || slices.ContainsFunc(got, func(tag string) bool { return tag != "one" }) {
			t.Errorf("in ten minutes it looked at the routes by %v, want it with each beat", got)
		}
		w.cloud.with(func() { w.cloud.peers.Tag = "two" })
		before := len(r.since(0))
		pass(11 * time.Second)
		if got, n := r.since(before), len(w.cloud.times("Peers")); len(got) == 0 || got[0] != "two" || n != 2 {
			t.Errorf("after the peers moved it routed by %v and had asked %d times", got, n)
		}
	})
}

func TestAgent_TriesRoutesAgain(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		r := &router{err: errors.New("no")}
		w.router = r
		w.cloud.peers.Tag = "one"
		w.start()
		pass(8 * time.Second)
		if n := len(r.since(0)); n < 3 {
			t.Errorf("it tried %d times before the first beat", n)
		}
		r.fail(nil)
		pass(10 * time.Second)
		before := len(r.since(0))
		pass(30 * time.Second)
		if n := len(r.since(before)); n < 3 || n > 4 {
			t.Errorf("once that works it goes on %d times in half a minute", n)
		}
		w.cloud.with(func() { w.cloud.known = false })
		pass(15 * time.Second)
		if n := len(w.cloud.registrations()); n != 2 {
			t.Errorf("it registered %d times", n)
		}
	})
}

func TestAgent_WithoutARouterAsksForNoPeers(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.cloud.peers.Tag = "one"
		w.start()
		pass(time.Minute)
		if n := len(w.cloud.times("Peers")); n != 0 {
			t.Errorf("it asked %d times", n)
		}
	})
}
