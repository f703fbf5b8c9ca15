package registry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

// volatile lists the JSON fields that change rows leave out on purpose: they are
// tagged `json:"-"`. node: lastSeen. instance: env (its names are there), output.

// replay folds the change log from nothing into the JSON of every object.
func replay(t rapid.TB, w *world) (objects map[string]string, changes []*muster.Change) {
	t.Helper()
	objects = map[string]string{}
	for after := int64(0); ; {
		page, err := w.store.ChangesAfter(context.Background(), after, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			return objects, changes
		}
		for _, c := range page {
			if objects[c.ObjectID] = c.Object; c.Deleted {
				delete(objects, c.ObjectID)
			}
			after = c.Revision
		}
		changes = append(changes, page...)
	}
}

func present(t rapid.TB, w *world) map[string]string {
	t.Helper()
	objects := map[string]string{}
	put := func(id string, object any) {
		b, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		objects[id] = string(b)
	}
	v := w.View()
	for n := range v.Nodes() {
		put(string(n.UID), n)
	}
	for i := range v.Instances() {
		put(string(i.ID), i)
	}
	for s := range v.Services() {
		put(string(s.ID), s)
	}
	for e := range v.Entries() {
		put(e.ObjectID(), e)
	}
	return objects
}

// checkLog checks what holds of every log: replayed it gives the present, each
// step of an object follows the one before, legally, and time never goes back.
func checkLog(t rapid.TB, w *world) {
	t.Helper()
	objects, changes := replay(t, w)
	if diff := cmp.Diff(present(t, w), objects); diff != "" {
		t.Fatalf("the log replayed is not the present (-present +replayed):\n%s", diff)
	}
	last := map[string]*muster.Change{}
	for k, c := range changes {
		if k > 0 && c.At.Before(changes[k-1].At) {
			t.Fatalf("time goes back at revision %d", c.Revision)
		}
		before := last[c.ObjectID]
		if before != nil && before.Deleted {
			before = &muster.Change{} // an entry may be there again
		}
		if before != nil && (c.PreviousRevision != before.Revision || c.PreviousStatus != before.Status) {
			t.Fatalf("revision %d of %s follows %d %s, but the one before is %d %s",
				c.Revision, c.ObjectID, c.PreviousRevision, c.PreviousStatus, before.Revision, before.Status)
		}
		legal := c.Deleted
		switch c.Kind {
		case muster.KindNode:
			legal = legal || muster.NodeStatus(c.PreviousStatus).MayBecome(muster.NodeStatus(c.Status))
		case muster.KindRegistration:
			legal = true
		case muster.KindService:
			legal = legal || muster.ServiceStatus(c.PreviousStatus).MayBecome(muster.ServiceStatus(c.Status))
		default:
			legal = legal || muster.InstanceStatus(c.PreviousStatus).MayBecome(muster.InstanceStatus(c.Status))
		}
		if !legal {
			t.Fatalf("revision %d of %s went from %q to %q", c.Revision, c.ObjectID, c.PreviousStatus, c.Status)
		}
		last[c.ObjectID] = c
	}
}

// checkCapacity checks that no node promises more than it has, that what is
// derived follows from the instances, and that no address is held twice.
func checkCapacity(t rapid.TB, w *world) {
	t.Helper()
	v := w.View()
	addresses := map[string]muster.InstanceID{}
	for n := range v.LiveNodes() {
		var held muster.Capacity
		for i := range v.InstancesOn(n.UID) {
			if i.Reserved {
				held.CPUPercent += i.CPULimit
				held.MemoryMB += i.MemLimitMB
				held.Instances++
			}
			if i.Status == muster.Terminated || i.Addr == "" {
				continue
			}
			if other, taken := addresses[i.Addr]; taken {
				t.Fatalf("%s and %s both have %s", other, i.ID, i.Addr)
			}
			addresses[i.Addr] = i.ID
		}
		if got := *w.Allocated(n); got != held {
			t.Fatalf("node %s: allocated %+v, its instances hold %+v", n.ID, got, held)
		}
		if held.MemoryMB > n.MemoryMB || held.CPUPercent > n.CPUCount*200 {
			t.Fatalf("node %s with %d CPUs and %d MiB promises %+v", n.ID, n.CPUCount, n.MemoryMB, held)
		}
	}
}

// fleet drives a registry with random steps, as people and agents would.
type fleet struct {
	*world
	nodes    []*muster.Node
	sequence int64
}

func (f *fleet) anyInstance(t *rapid.T) muster.InstanceID {
	all := []muster.InstanceID{"i-99999"}
	for i := range f.View().Instances() {
		all = append(all, i.ID)
	}
	return rapid.SampledFrom(all).Draw(t, "instance")
}

func (f *fleet) step(t *rapid.T) {
	node := rapid.SampledFrom(f.nodes).Draw(t, "node")
	switch rapid.SampledFrom([]string{"launch", "launch", "launch", "report", "report", "report", "start", "stop", "restart", "terminate", "cordon", "uncordon", "register", "remove"}).Draw(t, "step") {
	case "launch":
		in := launch(rapid.SampledFrom(muster.InstanceTypes()).Draw(t, "type").Type)
		in.Queue = rapid.Bool().Draw(t, "queue")
		in.Labels = muster.Map{"k": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "label")}
		_, _, err := f.LaunchInstance(ctx, in)
		f.expect(t, err, muster.NoCapacity, muster.Limit, muster.Invalid)
	case "report":
		f.report(t, node)
	case "start":
		_, _, err := f.StartInstance(ctx, f.anyInstance(t))
		f.expect(t, err, muster.NotFound, muster.Conflict, muster.NoCapacity)
	case "stop":
		_, _, err := f.StopInstance(ctx, f.anyInstance(t))
		f.expect(t, err, muster.NotFound, muster.Conflict)
	case "restart":
		_, _, err := f.RestartInstance(ctx, f.anyInstance(t))
		f.expect(t, err, muster.NotFound, muster.Conflict, muster.NoCapacity)
	case "terminate":
		_, _, err := f.TerminateInstance(ctx, f.anyInstance(t))
		f.expect(t, err, muster.NotFound)
	case "cordon":
		_, _, err := f.CordonNode(ctx, string(node.UID), "")
		f.expect(t, err, muster.NotFound)
	case "uncordon":
		_, _, err := f.UncordonNode(ctx, string(node.UID))
		f.expect(t, err, muster.NotFound)
	case "register":
		in := nodeInput(string(node.ID), node.CPUCount, node.MemoryMB)
		in.UID, in.Incarnation = &node.UID, node.Incarnation+1
		out, err := f.RegisterNode(ctx, in)
		f.expect(t, err, muster.Forbidden, muster.AlreadyExists)
		if err == nil {
			*node = *out.Node
		}
	case "remove":
		if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
			_, _, err := f.RemoveNode(ctx, string(node.UID))
			f.expect(t, err, muster.NotFound)
		}
	}
}

func (f *fleet) expect(t *rapid.T, err error, codes ...muster.Code) {
	for _, code := range append(codes, "") {
		if muster.CodeOf(err) == code {
			return
		}
	}
	t.Fatalf("unexpected: %v", err)
}

// report reports a random part of what is on a node, in random statuses, true
// to its agent's word that what it leaves out is gone.
func (f *fleet) report(t *rapid.T, n *muster.Node) {
	f.sequence++
	in := muster.ReportInstancesInput{
		UID: n.UID, Incarnation: n.Incarnation, Sequence: f.sequence, Epoch: f.ServerInfo().Epoch,
		AppliedRevision: rapid.Int64Range(0, f.DesiredRevision(n)).Draw(t, "applied"),
	}
	for i := range f.View().InstancesOn(n.UID) {
		if rapid.IntRange(0, 3).Draw(t, "absent") == 0 {
			continue
		}
		status := rapid.SampledFrom(muster.InstanceStatuses()).Draw(t, "status")
		if i.Status == muster.Lost && status != muster.Stopped && status != muster.Failed {
			continue // what was lost and lives on is a fact, not a promise: it may not fit
		}
		in.Instances = append(in.Instances, muster.InstanceReportInput{
			Machine: i.Machine, Epoch: in.Epoch, ID: i.ID, Generation: i.Generation - rapid.Int64Range(0, 1).Draw(t, "old"), Status: status,
		})
	}
	_, _, err := f.ReportInstances(ctx, in)
	f.expect(t, err, muster.UnknownNode, muster.Superseded)
}

func TestRegistry_Model(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := open(t, setup{opts: registry.Options{MaxPending: 3, AddressRest: 1}})
		defer w.stop()
		f := &fleet{world: w}
		for k := range rapid.IntRange(1, 3).Draw(rt, "nodes") {
			f.nodes = append(f.nodes, w.join(t, fmt.Sprintf("n%d", k), rapid.IntRange(1, 4).Draw(rt, "cpus"), rapid.IntRange(128, 2200).Draw(rt, "memory")).Clone())
		}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			f.step(rt)
			checkCapacity(rt, w)
		}
		checkLog(rt, w)
		keep := rapid.IntRange(1, 20).Draw(rt, "keep")
		if _, _, err := w.store.Compact(context.Background(), muster.Retention{Keep: keep, BatchRows: 3}); err != nil {
			rt.Fatal(err)
		}
		objects, _ := replay(rt, w)
		if diff := cmp.Diff(present(rt, w), objects); diff != "" {
			rt.Fatalf("after a compaction the log replayed is not the present:\n%s", diff)
		}
	})
}

func TestLaunchInstance_ConcurrentLaunchesNeverOvercommit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := open(t, setup{})
		defer w.stop()
		for k := range rapid.IntRange(1, 4).Draw(rt, "nodes") {
			w.join(t, fmt.Sprintf("n%d", k), rapid.IntRange(1, 4).Draw(rt, "cpus"), rapid.IntRange(128, 2200).Draw(rt, "memory"))
		}
		var wait sync.WaitGroup
		types := rapid.SliceOfN(rapid.SampledFrom([]muster.InstanceType{muster.Nano, muster.Micro, muster.Small, muster.Medium}), 8, 32).Draw(rt, "types")
		for _, size := range types {
			wait.Go(func() {
				if _, _, err := w.LaunchInstance(ctx, launch(size)); err != nil && muster.CodeOf(err) != muster.NoCapacity {
					t.Errorf("launch: %v", err)
				}
			})
		}
		wait.Wait()
		checkCapacity(rt, w)
	})
}
