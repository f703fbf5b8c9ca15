package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/store"
	"github.com/muster-cloud/muster/registry/watch"
)

// poisoned is a store that refuses every batch with an instance of one name, as
// a database refuses a row.
type poisoned struct {
	registry.Store
	entered chan struct{} // closed when the first commit begins
	held    chan struct{} // it waits for this, so that a batch gathers behind it
	once    sync.Once
}

// hold opens a world whose first commit, of a node, is held back until release.
func hold(t *testing.T) (w *world, release func()) {
	p := &poisoned{entered: make(chan struct{}), held: make(chan struct{})}
	w = open(t, setup{wrap: func(s registry.Store) registry.Store {
		p.Store = s
		return p
	}})
	release = sync.OnceFunc(func() { close(p.held) })
	t.Cleanup(release) // before the world's own, which waits for the commit
	go func() { _, _ = w.RegisterNode(ctx, nodeInput("n1", 64, 65536)) }()
	<-p.entered
	return w, release
}

func (p *poisoned) Commit(ctx context.Context, b *muster.Batch) error {
	p.once.Do(func() {
		close(p.entered)
		<-p.held
	})
	for _, i := range b.Instances {
		if i.Name == "poison" {
			return errors.New("constraint failed")
		}
	}
	return p.Store.Commit(ctx, b)
}

func TestCommit_APoisonRequestHarmsOnlyItself(t *testing.T) {
	w, release := hold(t)
	var wait sync.WaitGroup
	results := make([]error, 20)
	for k := range results {
		wait.Go(func() {
			in := launch(muster.Nano)
			in.Name, in.Queue = fmt.Sprintf("fine-%d", k), true
			if k == 7 {
				in.Name = "poison"
			}
			_, _, results[k] = w.LaunchInstance(ctx, in)
		})
	}
	eventually(t, "the requests wait", func() bool { return w.Stats().Queued == len(results) })
	release()
	wait.Wait()
	for k, err := range results {
		if (err != nil) != (k == 7) {
			t.Errorf("request %d: %v", k, err)
		}
	}
	if got := muster.CodeOf(results[7]); got != muster.Internal {
		t.Errorf("the poison got %s", got)
	}
	if s := w.Stats(); s.Splits != 1 {
		t.Errorf("%d splits, want 1: the poison was not in a batch with others", s.Splits)
	}
	c, err := w.Instances(nil, muster.PageInput{})
	if err != nil || c.TotalCount() != len(results)-1 {
		t.Errorf("%d instances, %v", c.TotalCount(), err)
	}
	requireSameOnDisk(t, w)
}

// requireSameOnDisk compares memory with what the database would be loaded as.
func requireSameOnDisk(t *testing.T, w *world) {
	t.Helper()
	state, err := w.store.Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	v := w.View()
	if v.Head() != state.Head {
		t.Errorf("memory is at %v, the disk at %v", v.Head(), state.Head)
	}
	onDisk := map[string]any{}
	for _, n := range state.Nodes {
		n.LastSeen = v.NodeByUID(n.UID).LastSeen // volatile
		onDisk[string(n.UID)] = n
	}
	for _, i := range state.Instances {
		onDisk[string(i.ID)] = i
	}
	inMemory := map[string]any{}
	for n := range v.Nodes() {
		inMemory[string(n.UID)] = n
	}
	for i := range v.Instances() {
		inMemory[string(i.ID)] = i
	}
	if diff := cmp.Diff(onDisk, inMemory); diff != "" {
		t.Errorf("disk and memory differ (-disk +memory):\n%s", diff)
	}
}

func TestCommit_FaultAtEachPoint(t *testing.T) {
	for _, c := range []struct {
		point    store.Point
		verify   error // what reading the counter afterwards meets
		code     muster.Code
		happened bool
		reloads  int64
	}{
		{store.BeforeWrite, nil, muster.Unavailable, false, 0},
		{store.BeforeCommit, nil, muster.Unavailable, false, 0},
		{store.DuringCommit, nil, muster.Unavailable, false, 0},
		{store.AfterCommit, nil, "", true, 0},
		{store.AfterCommit, errors.New("no answer"), muster.Unavailable, true, 1},
		{store.DuringCommit, errors.New("no answer"), muster.Unavailable, false, 1},
	} {
		t.Run(fmt.Sprintf("%s, then %v", c.point, c.verify), func(t *testing.T) {
			var armed atomic.Bool
			w := open(t, setup{fault: func(p store.Point) error {
				switch {
				case !armed.Load():
					return nil
				case p == store.Verify:
					return c.verify
				case p == c.point:
					return muster.Errorf(muster.Unavailable, "fault at %s", p)
				}
				return nil
			}})
			w.join(t, "n1", 4, 4096)
			followed := follow(t, w)
			armed.Store(true)
			in := launch(muster.Nano)
			in.RequestID = "r1"
			_, _, err := w.LaunchInstance(ctx, in)
			armed.Store(false)
			if muster.CodeOf(err) != c.code {
				t.Fatalf("launch: %v, want code %q", err, c.code)
			}
			eventually(t, "mutations are taken again", func() bool { return w.Ready() == nil })
			if got := w.Stats().Reloads; got != c.reloads {
				t.Errorf("memory was loaded again %d times, want %d", got, c.reloads)
			}
			if got := w.Instance("i-1") != nil; got != c.happened {
				t.Errorf("the launch happened: %t, want %t", got, c.happened)
			}
			requireSameOnDisk(t, w)
			if again := w.launch(t, in); again.ID != "i-1" {
				t.Errorf("the retry made %s, want i-1", again.ID)
			}
			w.launch(t, launch(muster.Nano))
			want := "1 2 3"
			eventually(t, "the watcher has every change once", func() bool { return followed() == want })
		})
	}
}

// follow watches everything from the beginning and returns the revisions so far.
func follow(t *testing.T, w *world) func() string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	epoch := w.ServerInfo().Epoch
	events, err := w.hub.Serve(ctx, watch.Spec{Match: func(*muster.Change) (bool, bool) { return true, false }},
		watch.Request{Since: &muster.Cursor{Epoch: epoch}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var revisions []string
	go func() {
		for e := range events {
			if e.Type == muster.EventChange {
				mu.Lock()
				revisions = append(revisions, fmt.Sprint(e.Revision))
				mu.Unlock()
			}
		}
	}()
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(revisions, " ")
	}
}

func TestCommit_ACallerThatLeavesRollsNothingBack(t *testing.T) {
	w, release := hold(t)
	impatient, cancel := context.WithCancel(ctx)
	left := make(chan error, 1)
	go func() {
		_, err := w.RegisterNode(impatient, nodeInput("n2", 2, 1024))
		left <- err
	}()
	eventually(t, "the request waits", func() bool { return w.Stats().Queued == 1 })
	cancel()
	wantCode(t, <-left, muster.Unavailable)
	release()
	eventually(t, "the node is there all the same", func() bool { return w.Node("n2") != nil })
}

func TestCommit_NothingIsTakenAfterTheEnd(t *testing.T) {
	w := open(t, setup{})
	w.stop()
	_, err := w.RegisterNode(ctx, nodeInput("n1", 2, 1024))
	wantCode(t, err, muster.Unavailable)
}
