package registry_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

// joinWith registers a node with volumes and host paths.
func (w *world) joinWith(t *testing.T, id string, memory int, volumes []string, paths ...string) *muster.Node {
	t.Helper()
	in := nodeInput(id, 8, memory)
	in.Volumes, in.HostPaths = volumes, paths
	out, err := w.RegisterNode(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	return out.Node
}

// naming is a launch with named volumes.
func naming(names ...string) muster.LaunchInstanceInput {
	in := launch(muster.Nano)
	for _, name := range names {
		in.Volumes = append(in.Volumes, muster.VolumeMount{Name: name, Path: "/" + name})
	}
	return in
}

// reasons are those of NO_CAPACITY, by node.
func reasons(t *testing.T, err error) map[muster.NodeID]string {
	t.Helper()
	e, ok := errors.AsType[*muster.Error](err)
	if !ok || e.Code != muster.NoCapacity {
		t.Fatalf("%v, want NO_CAPACITY", err)
	}
	found := map[muster.NodeID]string{}
	for _, r := range e.Details["nodes"].([]muster.Refusal) {
		found[r.NodeID] = r.Reason
	}
	return found
}

// has reports a node's volumes and nothing else.
func (w *world) has(t *testing.T, n *muster.Node, sequence int64, volumes ...string) {
	t.Helper()
	_, _, err := w.ReportInstances(ctx, muster.ReportInstancesInput{
		UID: n.UID, Incarnation: n.Incarnation, Sequence: sequence, Epoch: w.ServerInfo().Epoch, AppliedRevision: w.DesiredRevision(n),
		Volumes: append([]string{}, volumes...), Instances: []muster.InstanceReportInput{},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) volumes(t *testing.T) (list []string) {
	t.Helper()
	c, err := w.Seen(ctx).Volumes(nil, muster.PageInput{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range c.Edges {
		text := e.Node.Name + " on " + string(w.View().NodeByUID(e.Node.NodeUID).ID)
		if e.Node.Removing {
			text += " removing"
		}
		list = append(list, text)
	}
	if c.TotalCount() != len(list) {
		t.Errorf("%d in all, %d are listed", c.TotalCount(), len(list))
	}
	return list
}

func TestLaunchInstance_GoesToItsVolumes(t *testing.T) {
	w := open(t, setup{})
	a := w.joinWith(t, "a", 2048, []string{"data"}, "/srv/shared")
	b := w.joinWith(t, "b", 64<<10, nil)
	if i := w.launch(t, naming("data")); i.NodeUID != a.UID || len(i.Volumes) != 1 || i.Volumes[0].Path != "/data" {
		t.Errorf("launched with a volume of a: %+v", i)
	}
	first := w.launch(t, naming("fresh"))
	if first.NodeUID != b.UID {
		t.Errorf("a new volume is on %s, want it where the most room is", first.NodeUID)
	}
	// Nothing was reported yet, and b is drained of room: the name has a home all the same.
	if _, _, err := w.CordonNode(ctx, "b", ""); err != nil {
		t.Fatal(err)
	}
	_, _, err := w.LaunchInstance(ctx, naming("fresh"))
	if got := reasons(t, err); got["b"] != "it is cordoned" || got["a"] != `the volume "fresh" is on node b, which is HEALTHY` {
		t.Errorf("reasons %v", got)
	}
	_, _, err = w.LaunchInstance(ctx, naming("data", "fresh"))
	if got := reasons(t, err); !strings.Contains(got["a"], `"fresh" is on node b`) {
		t.Errorf("reasons %v", got)
	}
	in := launch(muster.Nano)
	in.Volumes = []muster.VolumeMount{{HostPath: "/srv/shared/x", Path: "/x"}}
	if i := w.launch(t, in); i.NodeUID != a.UID {
		t.Errorf("with a host path that a allows it is on %s", i.NodeUID)
	}
	in.Volumes[0].HostPath = "/srv"
	_, _, err = w.LaunchInstance(ctx, in)
	if got := reasons(t, err); got["a"] != "it does not allow the host path /srv: start its agent with --allow-host-path /srv" {
		t.Errorf("reasons %v", got)
	}
	// What was never made is nobody's once its only user is gone.
	if _, _, err := w.TerminateInstance(ctx, first.ID); err != nil {
		t.Fatal(err)
	}
	w.report(t, b, 1, nil)
	if i := w.launch(t, naming("fresh")); i.NodeUID != a.UID {
		t.Errorf("it is on %s, want a", i.NodeUID)
	}
}

func TestLaunchInstance_AssignsVolumes(t *testing.T) {
	dir := t.TempDir()
	w := open(t, setup{dir: dir})
	n := w.joinWith(t, "a", 2048, nil, "/srv")
	in := naming("data")
	in.Volumes = append(in.Volumes, muster.VolumeMount{HostPath: "/srv", Path: "/srv", ReadOnly: true})
	i := w.launch(t, in)
	w.stop()
	w = open(t, setup{dir: dir})
	assigned, err := w.Assignments(ctx, n.UID, 1)
	if err != nil || !slices.Equal(assigned.Instances[0].Volumes, in.Volumes) || !slices.Equal(w.Instance(i.ID).Volumes, in.Volumes) {
		t.Errorf("after a restart %+v is assigned, %v", assigned.Instances[0], err)
	}
}

func TestLaunchInstance_WaitsForItsVolume(t *testing.T) {
	w := open(t, setup{})
	a := w.joinWith(t, "a", 256, []string{"data"})
	w.join(t, "b", 8, 8192)
	full := launch(muster.Micro)
	full.NodeSelector = nil
	uid := string(a.UID)
	full.NodeID = &uid
	blocking := w.launch(t, full)
	in := naming("data")
	in.Queue = true
	waiting := w.launch(t, in)
	if waiting.Status != muster.Pending {
		t.Fatalf("it is %s", waiting.Status)
	}
	if i := w.launch(t, naming("other")); i.Status != muster.Provisioning {
		t.Errorf("another one is %s", i.Status)
	}
	if _, _, err := w.TerminateInstance(ctx, blocking.ID); err != nil {
		t.Fatal(err)
	}
	w.report(t, a, 1, nil)
	if i := wantStatus(t, w, waiting.ID, muster.Provisioning); i.NodeUID != a.UID {
		t.Errorf("it is on %s, want a", i.NodeUID)
	}
}

func TestLaunchInstance_VolumeOnSeveralNodes(t *testing.T) {
	w := open(t, setup{})
	w.joinWith(t, "a", 2048, []string{"data"})
	b := w.joinWith(t, "b", 2048, []string{"data"})
	_, _, err := w.LaunchInstance(ctx, naming("data"))
	if got := reasons(t, err); got["a"] != `several nodes have a volume "data" (a, b): ask for one of them` {
		t.Errorf("reasons %v", got)
	}
	in := naming("data")
	name := "b"
	in.NodeID = &name
	if i := w.launch(t, in); i.NodeUID != b.UID {
		t.Errorf("it is on %s, want b", i.NodeUID)
	}
	_, _, err = w.RemoveVolume(ctx, muster.RemoveVolumeInput{Name: "data"})
	wantCode(t, err, muster.Conflict)
	name = "a"
	if _, _, err := w.RemoveVolume(ctx, muster.RemoveVolumeInput{Name: "data", NodeID: &name}); err != nil {
		t.Fatal(err)
	}
	if i := w.launch(t, naming("data")); i.NodeUID != b.UID {
		t.Errorf("once a's is being removed it is on %s, want b", i.NodeUID)
	}
}

func TestRemoveVolume(t *testing.T) {
	dir := t.TempDir()
	w := open(t, setup{dir: dir})
	n := w.joinWith(t, "a", 2048, []string{"data", "other"})
	i := w.launch(t, naming("data"))
	remove := muster.RemoveVolumeInput{Name: "data"}
	_, _, err := w.RemoveVolume(ctx, remove)
	wantCode(t, err, muster.Conflict)
	if users := w.VolumeUsers(&muster.Volume{Name: "data", NodeUID: n.UID}); len(users) != 1 || users[0].ID != i.ID {
		t.Errorf("used by %v", users)
	}
	w.report(t, n, 1, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Stopped})
	_, _, err = w.RemoveVolume(ctx, remove) // one that is stopped can be started again
	wantCode(t, err, muster.Conflict)
	if _, _, err := w.TerminateInstance(ctx, i.ID); err != nil {
		t.Fatal(err)
	}
	_, _, err = w.RemoveVolume(ctx, remove) // its node still has it
	wantCode(t, err, muster.Conflict)
	w.report(t, n, 2, nil)

	before := w.DesiredRevision(n)
	for range 2 { // the second time changes nothing
		if o, _, err := w.RemoveVolume(ctx, remove); err != nil || !o.Removing {
			t.Fatalf("removed %+v, %v", o, err)
		}
	}
	moved := w.DesiredRevision(n)
	if moved <= before {
		t.Errorf("the node's desired revision stays at %d", moved)
	}
	_, _, err = w.LaunchInstance(ctx, naming("data"))
	if got := reasons(t, err); got["a"] != `its volume "data" is being removed` {
		t.Errorf("reasons %v", got)
	}
	w.stop()
	w = open(t, setup{dir: dir})
	if got := w.DesiredRevision(n); got != moved {
		t.Errorf("after a restart the desired revision is %d, want %d", got, moved)
	}
	if assigned, err := w.Assignments(ctx, n.UID, 1); err != nil || !slices.Equal(assigned.RemoveVolumes, []string{"data"}) {
		t.Errorf("assigned %+v, %v", assigned, err)
	}
	w.has(t, n, 3, "data", "other") // not yet
	if got := w.volumes(t); !slices.Equal(got, []string{"data on a removing", "other on a"}) {
		t.Errorf("volumes %v", got)
	}
	w.has(t, n, 4, "other")
	if got := w.volumes(t); !slices.Equal(got, []string{"other on a"}) {
		t.Errorf("volumes %v", got)
	}
	if assigned, err := w.Assignments(ctx, n.UID, 1); err != nil || len(assigned.RemoveVolumes) > 0 {
		t.Errorf("assigned %+v, %v", assigned, err)
	}
	_, _, err = w.RemoveVolume(ctx, remove)
	wantCode(t, err, muster.NotFound)
	w.launch(t, naming("data"))
}

func TestVolumes_OfNodesThatAreGone(t *testing.T) {
	w := open(t, setup{opts: registry.Options{}})
	w.joinWith(t, "a", 2048, []string{"data"})
	b := w.join(t, "b", 8, 2048)
	if _, _, err := w.RemoveNode(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if got := w.volumes(t); len(got) > 0 {
		t.Errorf("volumes of a node that was removed: %v", got)
	}
	if i := w.launch(t, naming("data")); i.NodeUID != b.UID {
		t.Errorf("it is on %s, want b", i.NodeUID)
	}
}

func TestVolumes_Pages(t *testing.T) {
	w := open(t, setup{})
	var all []string
	for i := range 5 {
		all = append(all, fmt.Sprintf("v%d", i))
	}
	w.joinWith(t, "a", 2048, all)
	w.joinWith(t, "b", 2048, []string{"v2", "w"})
	var got []string
	two := 2
	page := muster.PageInput{First: &two}
	for {
		c, err := w.Seen(ctx).Volumes(nil, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range c.Edges {
			got = append(got, e.Node.Name)
		}
		if !c.PageInfo.HasNextPage {
			break
		}
		page.After = c.PageInfo.EndCursor
	}
	if want := []string{"v0", "v1", "v2", "v2", "v3", "v4", "w"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	name := "b"
	if c, err := w.Seen(ctx).Volumes(&name, muster.PageInput{}); err != nil || c.TotalCount() != 2 {
		t.Errorf("on b: %+v, %v", c, err)
	}
}
