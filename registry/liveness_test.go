package registry_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/store"
)

func optionsWithNetwork(prefix string) registry.Options {
	return registry.Options{InstanceNetwork: netip.MustParsePrefix(prefix)}
}

// ledger is a store that counts what the registry asks of it. The state that it
type ledger struct {
	registry.Store
	commits, flushes, uses int
}

func (l *ledger) Commit(ctx context.Context, b *muster.Batch) error {
	l.commits++
	return l.Store.Commit(ctx, b)
}

func (l *ledger) SaveLastSeen(ctx context.Context, seen map[muster.NodeUID]time.Time) error {
	l.flushes++
	return l.Store.SaveLastSeen(ctx, seen)
}

func (l *ledger) SaveLastUsed(ctx context.Context, used map[muster.KeyID]time.Time) error {
	l.uses++
	return l.Store.SaveLastUsed(ctx, used)
}

// bubble runs a test on a real database under virtual time.
func bubble(t *testing.T, test func(t *testing.T, w *world, l *ledger)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{}
		w := open(t, setup{dir: dir, wrap: func(s registry.Store) registry.Store {
			l.Store = s
			return l
		}})
		test(t, w, l)
		w.stop()
	})
}

func (w *world) beat(t testing.TB, n *muster.Node) {
	t.Helper()
	if _, err := w.Heartbeat(ctx, muster.HeartbeatInput{UID: n.UID, Incarnation: n.Incarnation}); err != nil {
		t.Fatalf("beat of %s: %v", n.ID, err)
	}
}

func TestLiveness_SilenceAndReturn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		n := w.join(t, "n1", 2, 1024)
		i := w.launch(t, launch(muster.Nano))
		status := func(want muster.NodeStatus) {
			t.Helper()
			synctest.Wait()
			if got := w.Node("n1"); got == nil || got.Status != want {
				t.Fatalf("node is %+v, want %s", got, want)
			}
		}
		time.Sleep(29 * time.Second)
		status(muster.Healthy)
		time.Sleep(2 * time.Second)
		status(muster.Unhealthy)
		_, _, err := w.LaunchInstance(ctx, launch(muster.Nano))
		wantCode(t, err, muster.NoCapacity)
		w.beat(t, n)
		status(muster.Healthy) // at once
		time.Sleep(299 * time.Second)
		status(muster.Unhealthy)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := w.Node("n1"); got != nil {
			t.Fatalf("node is %+v after 5 min of silence, want it pruned", got)
		}
		wantStatus(t, w, i.ID, muster.Lost)
		_, err = w.Heartbeat(ctx, muster.HeartbeatInput{UID: n.UID, Incarnation: 1})
		wantCode(t, err, muster.UnknownNode)

		back := nodeInput("n1", 2, 1024)
		back.UID, back.Incarnation, back.Epoch = &n.UID, 2, w.ServerInfo().Epoch
		back.Instances = []muster.InstanceReportInput{{Machine: i.Machine, Epoch: back.Epoch, ID: i.ID, Generation: 1, Status: muster.Running}}
		out, err := w.RegisterNode(ctx, back)
		if err != nil || out.Node.UID != n.UID || out.Node.Status != muster.Healthy {
			t.Fatalf("it returned as %+v, %v", out, err)
		}
		wantStatus(t, w, i.ID, muster.Running)
	})
}

func TestLiveness_StartupGrace(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, setup{dir: dir})
		w.join(t, "n1", 2, 1024)
		w.stop()
		time.Sleep(time.Hour) // the server is down
		w = open(t, setup{dir: dir})
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if got := w.Node("n1"); got.Status != muster.Healthy {
			t.Fatalf("node is %s within the grace", got.Status)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := w.Node("n1"); got.Status != muster.Unhealthy {
			t.Fatalf("node is %s after the grace", got.Status)
		}
		w.stop()
	})
}

func TestLiveness_FailedExpiryIsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		w := open(t, setup{dir: dir, fault: func(p store.Point) error {
			if broken.Load() && p == store.BeforeCommit {
				return muster.Errorf(muster.Unavailable, "the disk is full")
			}
			return nil
		}})
		w.join(t, "n1", 2, 1024)
		broken.Store(true)
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if got := w.Node("n1"); got.Status != muster.Healthy {
			t.Fatalf("node is %s though no commit succeeded", got.Status)
		}
		broken.Store(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := w.Node("n1"); got.Status != muster.Unhealthy {
			t.Fatalf("node is %s, the expiry was not tried again", got.Status)
		}
		w.stop()
	})
}

func TestLiveness_ANodeIsNeverSeenWithoutItsRegistrationsBeat(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		stalled := make(chan struct{})
		w := open(t, setup{dir: dir, fault: func(p store.Point) error {
			if p == store.BeforeWrite {
				<-stalled
			}
			return nil
		}})
		gaveUp, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := w.RegisterNode(gaveUp, nodeInput("n1", 2, 1024))
		wantCode(t, err, muster.Unavailable)
		time.Sleep(time.Minute) // the start-up grace is over
		close(stalled)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := w.Node("n1"); got == nil || got.Status != muster.Healthy || w.ServerInfo().Revision != 1 {
			t.Errorf("5 s after its registration was committed the node is %+v, at revision %d", got, w.ServerInfo().Revision)
		}
		w.stop()
	})
}

func TestLiveness_IdleHourChangesNothing(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{}
		w := open(t, setup{dir: dir, wrap: func(s registry.Store) registry.Store {
			l.Store = s
			return l
		}})
		nodes := make([]*muster.Node, 100)
		for k := range nodes {
			nodes[k] = w.join(t, fmt.Sprintf("n%d", k), 2, 1024)
		}
		synctest.Wait()
		revision, commits := w.ServerInfo().Revision, l.commits
		rows := rowsChanged(t, w)
		for range 360 {
			time.Sleep(10 * time.Second)
			for _, n := range nodes {
				w.beat(t, n)
			}
		}
		synctest.Wait()
		if got := w.ServerInfo().Revision; got != revision || l.commits != commits {
			t.Errorf("an idle hour made %d changes in %d commits", got-revision, l.commits-commits)
		}
		if l.flushes < 59 || l.flushes > 61 {
			t.Errorf("lastSeen was flushed %d times in an hour, want 60", l.flushes)
		}
		if got, want := rowsChanged(t, w)-rows, int64(l.flushes*len(nodes)); got > want {
			t.Errorf("%d rows were written, want at most the flush's %d", got, want)
		}
		w.stop()
	})
}

func rowsChanged(t *testing.T, w *world) int64 {
	t.Helper()
	n, err := w.store.RowsChanged(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return n
}
