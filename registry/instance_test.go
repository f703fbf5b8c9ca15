package registry_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

func TestLaunchInstance_PlacesAndReserves(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 1024)
	in := launch(muster.Small)
	in.Name, in.Env, in.Command = "web", muster.Map{"TOKEN": "secret"}, []string{"/bin/httpd", "-f"}
	i, revision, err := w.LaunchInstance(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case i.ID != "i-1", i.Name != "web", i.Status != muster.Provisioning, i.NodeUID != n.UID:
		t.Errorf("launched %+v", i)
	case i.Addr != "10.213.0.2", i.CPULimit != 100, i.MemLimitMB != 512, i.Generation != 1:
		t.Errorf("launched %+v", i)
	case revision != i.Revision, i.DesiredRevision != i.Revision:
		t.Errorf("revision %d, instance %+v", revision, i)
	case !strings.HasSuffix(i.Machine, "-i-1-1"):
		t.Errorf("machine %q", i.Machine)
	}
	if free := w.Free(n); free.MemoryMB != 512 || free.CPUPercent != 300 {
		t.Errorf("free %+v, want 512 MiB and 300 %% (over-commit 2)", free)
	}
	a, err := w.Assignments(t.Context(), n.UID, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Instances) != 1 || a.Instances[0].Env["TOKEN"] != "secret" || a.DesiredRevision != revision {
		t.Errorf("assignments %+v", a)
	}
	eventually(t, "the agent is nudged", func() bool { return w.agents.nudged.Load() == 1 })
	changes, err := w.LastChanges(ctx, []string{"i-1"}, 5)
	if err != nil {
		t.Fatal(err)
	}
	if c := changes["i-1"]; len(c) != 1 || strings.Contains(c[0].Object, "secret") || c[0].Actor != "alice" {
		t.Errorf("change rows %+v", c)
	}
}

func TestLaunchInstance_RequestID(t *testing.T) {
	dir := t.TempDir()
	w := open(t, setup{dir: dir})
	w.join(t, "n1", 4, 4096)
	in := launch(muster.Nano)
	in.RequestID = "r1"
	first := w.launch(t, in)
	if again := w.launch(t, in); again.ID != first.ID {
		t.Errorf("the same request made %s and %s", first.ID, again.ID)
	}
	other := in
	other.Type = muster.Micro
	_, _, err := w.LaunchInstance(ctx, other)
	wantCode(t, err, muster.Conflict)
	if i, _, err := w.LaunchInstance(as("bob"), in); err != nil || i.ID == first.ID {
		t.Errorf("another caller's request of the same id gave %+v, %v", i, err)
	}
	w.stop()
	w = open(t, setup{dir: dir})
	if again := w.launch(t, in); again.ID != first.ID {
		t.Errorf("after a restart the same request made %s, want %s", again.ID, first.ID)
	}
	refusedInput := launch(muster.Large)
	refusedInput.Type, refusedInput.RequestID = muster.Large, "r2"
	refusedInput.NodeSelector = muster.Map{"zone": "nowhere"}
	_, _, err = w.LaunchInstance(ctx, refusedInput)
	wantCode(t, err, muster.NoCapacity)
	refusedInput.NodeSelector = nil
	if _, _, err := w.LaunchInstance(ctx, refusedInput); err != nil {
		t.Errorf("a refusal was remembered: %v", err)
	}
}

func TestLaunchInstance_NoCapacity(t *testing.T) {
	w := open(t, setup{})
	_, _, err := w.LaunchInstance(ctx, launch(muster.Nano))
	wantCode(t, err, muster.NoCapacity)

	w.join(t, "small", 1, 300)
	cordoned := w.join(t, "cordoned", 8, 8192)
	if _, _, err := w.CordonNode(ctx, string(cordoned.ID), "disk swap"); err != nil {
		t.Fatal(err)
	}
	gateway := nodeInput("gateway", 8, 8192)
	gateway.Role = muster.ServiceRole
	if _, err := w.RegisterNode(ctx, gateway); err != nil {
		t.Fatal(err)
	}
	w.launch(t, launch(muster.Micro))
	_, _, err = w.LaunchInstance(ctx, launch(muster.Micro))
	wantCode(t, err, muster.NoCapacity)
	want := []muster.Refusal{
		{NodeID: "cordoned", Reason: "it is cordoned"},
		{NodeID: "gateway", Reason: "its role is SERVICE, not COMPUTE"},
		{NodeID: "small", Reason: "44 MiB of memory are free, 256 are needed", Need: new(256), Have: new(44)},
	}
	if diff := cmp.Diff(want, err.(*muster.Error).Details["nodes"]); diff != "" {
		t.Errorf("the reasons are not those (-want +got):\n%s", diff)
	}
	_, _, err = w.LaunchInstance(ctx, muster.LaunchInstanceInput{Type: muster.Nano, Image: "nosuch"})
	wantCode(t, err, muster.Invalid)
	if !strings.Contains(err.Error(), `neither a node nor the server has the image "nosuch" (there is: minimal)`) {
		t.Errorf("message %q", err)
	}
}

func TestLaunchInstance_QueueInOrder(t *testing.T) {
	w := open(t, setup{opts: registry.Options{MaxPending: 2}})
	n := w.join(t, "n1", 8, 1024)
	tooLarge := launch(muster.Large)
	tooLarge.Queue = true
	_, _, err := w.LaunchInstance(ctx, tooLarge)
	wantCode(t, err, muster.NoCapacity) // it could never fit: said at once

	full := w.launch(t, launch(muster.Medium))
	queued := launch(muster.Medium)
	queued.Queue = true
	waiting := w.launch(t, queued)
	if waiting.Status != muster.Pending || waiting.NodeUID != "" || waiting.Addr != "" {
		t.Fatalf("queued %+v", waiting)
	}
	second := w.launch(t, queued)
	_, _, err = w.LaunchInstance(ctx, queued)
	wantCode(t, err, muster.Limit)
	_, _, err = w.LaunchInstance(ctx, launch(muster.Medium))
	wantCode(t, err, muster.NoCapacity)

	if _, _, err := w.TerminateInstance(ctx, full.ID); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, w, waiting.ID, muster.Pending) // its node has not confirmed
	w.report(t, n, 1, nil)
	wantStatus(t, w, full.ID, muster.Terminated)
	placed := wantStatus(t, w, waiting.ID, muster.Provisioning)
	if placed.NodeUID != n.UID || !placed.Reserved {
		t.Errorf("placed %+v", placed)
	}
	if placed.Addr == full.Addr {
		t.Errorf("the address %s did not rest", placed.Addr)
	}
	wantStatus(t, w, second.ID, muster.Pending)
	if i, _, err := w.TerminateInstance(ctx, second.ID); err != nil || i.Status != muster.Terminated {
		t.Errorf("terminating a waiting instance: %+v, %v", i, err)
	}
	w.join(t, "n2", 8, 1024) // nobody waits any more
	if free := w.Free(w.Node("n2")); free.MemoryMB != 1024 {
		t.Errorf("free on the new node %+v", free)
	}
}

func TestLaunchInstance_QueueDeadline(t *testing.T) {
	w := open(t, setup{opts: registry.Options{SweepInterval: time.Millisecond}})
	w.join(t, "n1", 8, 128)
	w.launch(t, launch(muster.Nano))
	in := launch(muster.Nano)
	wait := 20 * time.Millisecond
	in.Queue, in.QueueTimeout = true, &wait
	i := w.launch(t, in)
	eventually(t, "the waiting instance fails", func() bool { return w.Instance(i.ID).Status == muster.Failed })
	if reason := w.Instance(i.ID).StatusReason; reason != "no node fitted before its deadline" {
		t.Errorf("reason %q", reason)
	}
	if gone, _, err := w.TerminateInstance(ctx, i.ID); err != nil || gone.Status != muster.Terminated {
		t.Errorf("terminate: %+v, %v", gone, err)
	}
}

func TestInstance_LifeCycle(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 600)
	i := w.launch(t, launch(muster.Small))
	running := map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Running}
	w.report(t, n, 1, running)
	wantStatus(t, w, i.ID, muster.Running)

	if got, _, err := w.StopInstance(ctx, i.ID); err != nil || got.Status != muster.Stopping || got.Desired != muster.WantStopped {
		t.Fatalf("stop: %+v, %v", got, err)
	}
	w.report(t, n, 2, running) // not yet
	wantStatus(t, w, i.ID, muster.Stopping)
	w.report(t, n, 3, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Failed}) // killed after the grace
	if got := wantStatus(t, w, i.ID, muster.Stopped); got.Reserved {
		t.Errorf("a stopped instance holds its capacity: %+v", got)
	}
	other := w.launch(t, launch(muster.Small)) // takes the freed capacity
	_, _, err := w.StartInstance(ctx, i.ID)
	wantCode(t, err, muster.NoCapacity)
	if _, _, err := w.TerminateInstance(ctx, other.ID); err != nil {
		t.Fatal(err)
	}
	w.report(t, n, 4, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Stopped})
	started, _, err := w.StartInstance(ctx, i.ID)
	if err != nil || started.Generation != 2 || started.Status != muster.Provisioning || !strings.HasSuffix(started.Machine, "-i-1-2") {
		t.Fatalf("start: %+v, %v", started, err)
	}
	w.report(t, n, 5, running)
	again, _, err := w.RestartInstance(ctx, i.ID)
	if err != nil || again.Generation != 3 || again.Status != muster.Provisioning || !again.Reserved {
		t.Fatalf("restart: %+v, %v", again, err)
	}
	w.report(t, n, 6, running)
	gone, _, err := w.TerminateInstance(ctx, i.ID)
	if err != nil || gone.Status != muster.Terminating {
		t.Fatalf("terminate: %+v, %v", gone, err)
	}
	_, _, err = w.StartInstance(ctx, i.ID)
	wantCode(t, err, muster.Conflict)
	w.report(t, n, 7, running) // it is there still
	wantStatus(t, w, i.ID, muster.Terminating)
	w.report(t, n, 8, nil)
	wantStatus(t, w, i.ID, muster.Terminated)
}

func TestInstance_TerminatedIsForgottenAfterItsTime(t *testing.T) {
	w := open(t, setup{opts: registry.Options{SweepInterval: time.Millisecond, TerminatedTTL: 10 * time.Millisecond}})
	n := w.join(t, "n1", 2, 600)
	i := w.launch(t, launch(muster.Nano))
	if _, _, err := w.TerminateInstance(ctx, i.ID); err != nil {
		t.Fatal(err)
	}
	w.report(t, n, 1, nil)
	eventually(t, "the record goes", func() bool { return w.Instance(i.ID) == nil })
	changes, err := w.LastChanges(ctx, []string{string(i.ID)}, 1)
	if err != nil || !changes[string(i.ID)][0].Deleted {
		t.Errorf("last change %+v, %v", changes, err)
	}
	_, _, err = w.TerminateInstance(ctx, i.ID)
	wantCode(t, err, muster.NotFound)
}
