package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/store"
	"github.com/muster-cloud/muster/registry/watch"
)

// write commits n changes from a number of callers, and returns how many went
// into a database transaction.
func write(t testing.TB, w *world, callers, n int) float64 {
	t.Helper()
	for k := range callers {
		w.join(t, fmt.Sprintf("n%d", k), 4, 4096)
	}
	before := w.Stats()
	var left atomic.Int64
	left.Store(int64(n))
	var wait sync.WaitGroup
	for k := range callers {
		wait.Go(func() {
			id := fmt.Sprintf("n%d", k)
			for cordon := true; left.Add(-1) >= 0; cordon = !cordon {
				var err error
				if cordon {
					_, _, err = w.CordonNode(ctx, id, "bench")
				} else {
					_, _, err = w.UncordonNode(ctx, id)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	after := w.Stats()
	return float64(n) / float64(after.Commits-before.Commits)
}

func TestCommit_ManyCallersShareATransaction(t *testing.T) {
	if got := write(t, open(t, setup{}), 64, 6400); got < 20 {
		t.Errorf("%.1f writes a database transaction from 64 callers, want at least 20", got)
	}
}

func BenchmarkRegistry_Write(b *testing.B) {
	for _, c := range []struct {
		name     string
		maxBatch int
	}{{"64Callers", 0}, {"64CallersOneATransaction", 1}} {
		b.Run(c.name, func(b *testing.B) {
			w := open(b, setup{opts: registry.Options{MaxBatch: c.maxBatch}})
			b.ResetTimer()
			shared := write(b, w, 64, b.N)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
			b.ReportMetric(shared, "writes/tx")
		})
	}
}

// crowd writes a database of many nodes and instances.
func crowd(b *testing.B, dir string, nodes, instances int) {
	b.Helper()
	st, err := store.Open(context.Background(), store.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	state, err := st.Load(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	batch := &muster.Batch{Epoch: state.Epoch, Term: state.Term, To: int64(nodes + instances), Tag: "0123456789abcdef", Sequences: map[string]int64{muster.InstanceSequence: int64(instances)}}
	change := func(kind muster.ChangeKind, id, status string) *muster.Change {
		c := &muster.Change{Revision: int64(len(batch.Changes) + 1), Epoch: state.Epoch, Batch: batch.Tag, At: at, Kind: kind, ObjectID: id, Status: status, Reason: "made for the benchmark"}
		batch.Changes = append(batch.Changes, c)
		return c
	}
	for k := range nodes {
		n := &muster.Node{
			UID: muster.NodeUID(fmt.Sprintf("n-%032d", k)), ID: muster.NodeID(fmt.Sprintf("node-%d", k)), Hostname: "h", Addr: "127.0.0.1", Port: 8080, Role: muster.Compute,
			CPUCount: 8, MemoryMB: 16384, Labels: muster.Map{"zone": "a"}, Images: []string{"minimal"}, Status: muster.Healthy, Schedulable: true, Incarnation: 1,
			Subnet: fmt.Sprintf("10.%d.%d.0/24", k/256, k%256), RegisteredAt: at,
		}
		c := change(muster.KindNode, string(n.UID), string(n.Status))
		n.Revision, c.Node = c.Revision, n
		batch.Nodes = append(batch.Nodes, n)
	}
	for k := range instances {
		n := batch.Nodes[k%nodes]
		i := &muster.Instance{
			ID: muster.InstanceIDOf(int64(k + 1)), Name: "x", NodeUID: n.UID, Type: muster.Nano, CPULimit: 25, MemLimitMB: 128, BaseImage: "minimal",
			Command: []string{}, EnvNames: []string{}, Labels: muster.Map{"app": "web"}, NodeSelector: muster.Map{}, Env: muster.Map{},
			Status: muster.Running, Desired: muster.WantRunning, Generation: 1, Machine: fmt.Sprintf("abcdef-i-%d-1", k+1), Addr: fmt.Sprintf("10.0.0.%d", k%250), CreatedAt: at, Reserved: true,
		}
		c := change(muster.KindInstance, string(i.ID), string(i.Status))
		i.Revision, i.DesiredRevision, c.Instance = c.Revision, c.Revision, i
		batch.Instances = append(batch.Instances, i)
	}
	if err := st.Commit(context.Background(), batch); err != nil {
		b.Fatal(err)
	}
}

func bigNetwork() registry.Options {
	return registry.Options{InstanceNetwork: netip.MustParsePrefix("10.0.0.0/8")}
}

func BenchmarkRegistry_Open10kNodes50kInstances(b *testing.B) {
	dir := b.TempDir()
	crowd(b, dir, 10_000, 50_000)
	b.ResetTimer()
	for b.Loop() {
		st, err := store.Open(context.Background(), store.Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		r, err := registry.Open(context.Background(), registry.Deps{Store: st, History: st, Hub: watch.New(st, watch.Options{}), Agents: &agents{}, Logger: slog.New(slog.DiscardHandler)}, bigNetwork())
		if err != nil {
			b.Fatal(err)
		}
		if r.Instance("i-50000") == nil {
			b.Fatal("the last instance is missing")
		}
		st.Close()
	}
}

func BenchmarkRegistry_Read(b *testing.B) {
	dir := b.TempDir()
	crowd(b, dir, 10_000, 50_000)
	w := open(b, setup{dir: dir, opts: bigNetwork()})
	n := w.Node("node-77")
	uid := string(n.UID)
	b.Run("InstanceByID", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.Instance("i-4711")
		}
	})
	b.Run("InstancesOfNode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.Instances(&muster.InstanceFilter{NodeID: &uid}, muster.PageInput{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Heartbeat", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.Heartbeat(ctx, muster.HeartbeatInput{UID: n.UID, Incarnation: 1}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Launch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.launch(b, launch(muster.Nano))
		}
	})
}
