package agent_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
)

// digest is that of some image.
func digest(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

// store is a fake of a node's images: what it pulls takes a while.
type store struct {
	mu      sync.Mutex
	has     map[string]bool
	takes   time.Duration
	fails   error
	ended   int // pulls that their context ended
	used    map[string]bool
	retired int
}

func (s *store) Has(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has[digest]
}

func (s *store) Pull(ctx context.Context, _, digest string) error {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		s.ended++
		return ctx.Err()
	}
	if s.fails == nil {
		s.has[digest] = true
	}
	return s.fails
}

func (s *store) Retire(used map[string]bool) (func() error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = used
	return func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.retired++
		return nil
	}, nil
}

// using returns the digests that the agent said are used.
func (s *store) using() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := maps.Clone(s.used)
	delete(used, "") // the node's own
	return used
}

// launchOf launches from an image of the registry's.
func (c *cloud) launchOf(digest string) muster.InstanceID {
	id := c.launch()
	c.with(func() {
		c.instances[id].BaseImage, c.instances[id].ImageDigest = "web", digest
	})
	return id
}

// pulling plays with a store of images.
func pulling(t *testing.T, s *store, test func(t *testing.T, w *world, a *running)) {
	t.Helper()
	s.has = map[string]bool{}
	play(t, func(t *testing.T, w *world) {
		w.images = s
		w.host.SetImages("minimal", muster.ImageRef("web", digest("a")), muster.ImageRef("web", digest("b")))
		test(t, w, w.start())
	})
}

func TestAgent_PullsBeforeItLaunches(t *testing.T) {
	s := &store{takes: 10 * time.Minute}
	pulling(t, s, func(t *testing.T, w *world, a *running) {
		var waiting []muster.InstanceID
		for range 6 { // more than are launched at once
			waiting = append(waiting, w.cloud.launchOf(digest("a")))
		}
		own := w.cloud.launch()
		a.nudgeNow(w, own)
		pass(time.Minute)
		w.want(own, muster.Running) // it needs nothing, and waits for nobody
		for _, id := range waiting {
			if r := w.cloud.seen(id); r.Status != muster.Provisioning || r.Reason != "pulling image web" || r.ImageDigest != digest("a") {
				t.Errorf("while its image comes %s is reported as %+v", id, r)
			}
		}
		pass(10 * time.Minute)
		for _, id := range waiting {
			w.want(id, muster.Running)
			r := w.cloud.seen(id)
			if spec := w.machine(r.Machine).Spec; r.Reason != "" || spec.Image != "web" || spec.ImageDigest != digest("a") {
				t.Errorf("%s is reported as %+v and was launched from %s of %q", id, r, spec.Image, spec.ImageDigest)
			}
		}
	})
}

func TestAgent_GivesUpAPullThatIsNotWanted(t *testing.T) {
	for name, end := range map[string]func(*cloud, muster.InstanceID) bool{"terminated": (*cloud).terminate, "stopped": (*cloud).stop} {
		t.Run(name, func(t *testing.T) {
			s := &store{takes: 24 * time.Hour}
			pulling(t, s, func(t *testing.T, w *world, a *running) {
				id := w.cloud.launchOf(digest("a"))
				a.nudgeNow(w, id)
				w.want(id, muster.Provisioning)
				end(w.cloud, id)
				a.nudgeNow(w, id)
				pass(time.Minute)
				if s.ended != 1 {
					t.Errorf("%d pulls were given up", s.ended)
				}
				if status := w.cloud.status(id); status != muster.Terminated && status != muster.Stopped {
					t.Errorf("it is %s", status)
				}
				other := w.cloud.launch()
				a.nudgeNow(w, other)
				w.want(other, muster.Running)
			})
		})
	}
}

func TestAgent_ReportsAPullThatFailed(t *testing.T) {
	s := &store{takes: time.Second, fails: errors.New("pull image web: the checksum is another")}
	pulling(t, s, func(t *testing.T, w *world, a *running) {
		id := w.cloud.launchOf(digest("a"))
		a.nudgeNow(w, id)
		pass(time.Minute)
		w.want(id, muster.Failed)
		if r := w.cloud.seen(id); r.Reason != "pull image web: the checksum is another" {
			t.Errorf("it is reported as %+v", r)
		}
		// It is tried again when somebody starts it.
		s.mu.Lock()
		s.fails = nil
		s.mu.Unlock()
		w.cloud.start(id)
		a.nudgeNow(w, id)
		pass(time.Minute)
		w.want(id, muster.Running)
	})
}

func TestAgent_EndsDuringAPull(t *testing.T) {
	s := &store{takes: time.Hour}
	pulling(t, s, func(t *testing.T, w *world, a *running) {
		id := w.cloud.launchOf(digest("a"))
		a.nudgeNow(w, id)
		began := time.Now()
		a.stop()
		if time.Since(began) != 0 || s.ended != 1 {
			t.Errorf("the end took %s and gave %d pulls up", time.Since(began), s.ended)
		}
		w.start()
		pass(2 * time.Hour)
		w.want(id, muster.Running)
	})
}

func TestAgent_SaysWhichImagesAreUsed(t *testing.T) {
	s := &store{takes: time.Minute}
	pulling(t, s, func(t *testing.T, w *world, a *running) {
		check := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			set := map[string]bool{}
			for _, digest := range want {
				set[digest] = true
			}
			if got := s.using(); !maps.Equal(got, set) {
				t.Errorf("%s %v are used, want %v", when, got, set)
			}
		}
		runs, comes := w.cloud.launchOf(digest("a")), w.cloud.launchOf(digest("b"))
		a.nudgeNow(w, comes)
		check("while they come", digest("a"), digest("b"))
		pass(5 * time.Minute)
		w.want(runs, muster.Running)
		w.cloud.terminate(comes)
		a.nudgeNow(w, comes)
		pass(time.Minute)
		check("after one was terminated", digest("a"))
		w.cloud.stop(runs)
		a.nudgeNow(w, runs)
		pass(time.Minute)
		check("while the other is stopped", digest("a"))
		w.cloud.hide(true) // a registry that knows nothing of it
		pass(time.Minute)
		check("of a machine that the registry leaves out", digest("a"))
		if s.retired == 0 {
			t.Error("what was taken away was not deleted")
		}
	})
}
