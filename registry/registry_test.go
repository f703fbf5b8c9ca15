package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/store"
	"github.com/muster-cloud/muster/registry/watch"
)

// agents is a fake of what the registry calls: it remembers nudges.
type agents struct {
	nudged   atomic.Int64
	identity func(addr string, port int) (muster.NodeUID, int64, error)
}

func (a *agents) Nudge(context.Context, registry.Nudge) error {
	a.nudged.Add(1)
	return nil
}

func (a *agents) Identify(_ context.Context, n *muster.Node) (muster.NodeUID, int64, error) {
	if a.identity == nil {
		return "", 0, fmt.Errorf("nobody answers at %s:%d", n.Addr, n.Port)
	}
	return a.identity(n.Addr, n.Port)
}

// world is a registry on a real database, running.
type world struct {
	*registry.Registry
	store  *store.Store
	hub    *watch.Hub
	agents *agents
	stop   func()
}

type setup struct {
	dir   string
	opts  registry.Options
	fault func(store.Point) error
	wrap  func(registry.Store) registry.Store
	feed  *feed
	certs registry.Certificates
	// keysChanged is told of keys that may open less than before.
	keysChanged func()
}

func open(t testing.TB, s setup) *world {
	t.Helper()
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	ctx, cancel := context.WithCancel(context.Background())
	st, err := store.Open(ctx, store.Options{Dir: s.dir, Fault: s.fault})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{store: st, hub: watch.New(st, watch.Options{}), agents: &agents{}}
	var durable registry.Store = st
	if s.wrap != nil {
		durable = s.wrap(st)
	}
	deps := registry.Deps{
		Store: durable, History: st, Hub: w.hub, Agents: w.agents, Logger: slog.New(slog.DiscardHandler),
		Certificates: s.certs, KeysChanged: s.keysChanged,
	}
	if s.feed != nil {
		deps.Feed = s.feed
	}
	w.Registry, err = registry.Open(ctx, deps, s.opts)
	if err != nil {
		t.Fatal(err)
	}
	w.Listening()
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := st.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	t.Cleanup(w.stop)
	return w
}

// as is a context of the named caller.
func as(name string) context.Context {
	return muster.WithPrincipal(context.Background(), muster.Principal{Name: name, Role: muster.Admin})
}

var ctx = as("alice")

// join registers a compute node that has the image "minimal".
func (w *world) join(t testing.TB, id string, cpus, memory int) *muster.Node {
	t.Helper()
	out, err := w.RegisterNode(ctx, nodeInput(id, cpus, memory))
	if err != nil {
		t.Fatalf("register %s: %v", id, err)
	}
	return out.Node
}

func nodeInput(id string, cpus, memory int) muster.RegisterNodeInput {
	return muster.RegisterNodeInput{
		ID: muster.NodeID(id), Hostname: id, Addr: "127.0.0.1", Port: 8080, Role: muster.Compute,
		CPUCount: cpus, MemoryMB: memory, Incarnation: 1, Images: []string{"minimal"},
	}
}

func launch(t muster.InstanceType) muster.LaunchInstanceInput {
	return muster.LaunchInstanceInput{Type: t, Image: "minimal"}
}

func (w *world) launch(t testing.TB, in muster.LaunchInstanceInput) *muster.Instance {
	t.Helper()
	i, _, err := w.LaunchInstance(ctx, in)
	if err != nil {
		t.Fatalf("launch: %v", err)
	}
	return i
}

// report says that each of a node's instances is in the status given.
func (w *world) report(t testing.TB, n *muster.Node, sequence int64, statuses map[muster.InstanceID]muster.InstanceStatus) []string {
	t.Helper()
	info := w.ServerInfo()
	in := muster.ReportInstancesInput{
		UID: n.UID, Incarnation: n.Incarnation, Sequence: sequence, Epoch: info.Epoch,
		AppliedRevision: w.DesiredRevision(n), Instances: []muster.InstanceReportInput{},
	}
	for id, status := range statuses {
		i := w.Instance(id)
		in.Instances = append(in.Instances, muster.InstanceReportInput{
			Machine: i.Machine, Epoch: info.Epoch, ID: id, Generation: i.Generation, Status: status, Reason: "as the test says",
		})
	}
	remove, _, err := w.ReportInstances(ctx, in)
	if err != nil {
		t.Fatalf("report: %v", err)
	}
	return remove
}

func wantCode(t testing.TB, err error, code muster.Code) {
	t.Helper()
	if muster.CodeOf(err) != code {
		t.Fatalf("got %s (%v), want %s", muster.CodeOf(err), err, code)
	}
}

func wantStatus(t testing.TB, w *world, id muster.InstanceID, s muster.InstanceStatus) *muster.Instance {
	t.Helper()
	i := w.Instance(id)
	if i == nil || i.Status != s {
		t.Fatalf("instance %s is %+v, want %s", id, i, s)
	}
	return i
}

func TestRegistry_RefusesContradictingOptions(t *testing.T) {
	for name, o := range map[string]registry.Options{
		"a network that is too small": {InstanceNetwork: netip.MustParsePrefix("10.0.0.0/25")},
		"a network with host bits":    {InstanceNetwork: netip.MustParsePrefix("10.0.0.1/16")},
		"an IPv6 network":             {InstanceNetwork: netip.MustParsePrefix("fd00::/16")},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, o.Validate(), muster.Invalid) })
	}
}

func TestRegistry_SurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	w := open(t, setup{dir: dir})
	n := w.join(t, "n1", 4, 4096)
	i := w.launch(t, launch(muster.Small))
	w.report(t, n, 1, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Running})
	before := w.ServerInfo()
	w.stop()

	w = open(t, setup{dir: dir})
	after := w.ServerInfo()
	if after.Cursor != before.Cursor || after.ClusterUID != before.ClusterUID {
		t.Fatalf("history: %+v, want %+v", after, before)
	}
	wantStatus(t, w, i.ID, muster.Running)
	if held := w.Allocated(n); held.MemoryMB != 512 || held.Instances != 1 {
		t.Errorf("allocated after the restart: %+v", held)
	}
	if got := w.Node("n1"); got == nil || got.LastSeen.IsZero() {
		t.Errorf("the node's last beat was not flushed at shutdown: %+v", got)
	}
	if next := w.launch(t, launch(muster.Nano)); next.ID != "i-2" {
		t.Errorf("next id is %s, want i-2", next.ID)
	}
}

func TestRegistry_ReadsIssueNoSQL(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 8, 8192)
	i := w.launch(t, launch(muster.Nano))
	before := w.store.Statements()
	for range 10 {
		w.Instance(i.ID)
		w.Node("n1")
		w.ClusterHealth()
		uid := string(n.UID)
		if _, err := w.Instances(&muster.InstanceFilter{NodeID: &uid}, muster.PageInput{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Assignments(t.Context(), n.UID, n.Incarnation); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Heartbeat(ctx, muster.HeartbeatInput{UID: n.UID, Incarnation: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if after := w.store.Statements(); after != before {
		t.Errorf("%d SQL statements for reads and beats, want none", after-before)
	}
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}
