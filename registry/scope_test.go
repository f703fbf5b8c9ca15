package registry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

// town is a world of nodes inside of a scope (a1, a2) and outside of it (b1), with an
// instance and a volume on each of a1 and b1, and one that waits for no node of its own.
type town struct {
	*world
	a1, a2, b1     *muster.Node
	in, out, waits *muster.Instance
	holder         context.Context // of the scope
}

func newTown(t *testing.T, role muster.Role) *town {
	t.Helper()
	w := &town{world: open(t, setup{})}
	for id, n := range map[string]**muster.Node{"a1": &w.a1, "a2": &w.a2, "b1": &w.b1} {
		in := nodeInput(id, 4, 4096)
		if id != "a2" {
			in.Volumes = []string{"on-" + id, "everywhere"}
		}
		out, err := w.RegisterNode(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		*n = out.Node
	}
	on := func(id string, queue bool, kind muster.InstanceType) *muster.Instance {
		in := launch(kind)
		in.Queue = queue
		if id != "" {
			in.NodeID = &id
		}
		return w.launch(t, in)
	}
	w.in, w.out = on("a1", false, muster.Nano), on("b1", false, muster.Nano)
	in := launch(muster.Nano)
	in.Queue, in.NodeSelector = true, muster.Map{"none": "has it"}
	w.waits = w.launch(t, in)
	_, text := w.made(t, muster.CreateAccessKeyInput{Name: "team-a", Role: role, Scope: &muster.KeyScope{Nodes: []string{"a*"}}})
	w.holder = w.world.holder(t, text)
	return w
}

func nodeIDs(c *muster.NodeConnection, err error) string {
	if err != nil {
		return err.Error()
	}
	var ids []string
	for _, e := range c.Edges {
		ids = append(ids, string(e.Node.ID))
	}
	return fmt.Sprintf("%s of %d", strings.Join(ids, " "), c.TotalCount())
}

func instanceIDs(c *muster.InstanceConnection, err error) string {
	if err != nil {
		return err.Error()
	}
	var ids []string
	for _, e := range c.Edges {
		ids = append(ids, string(e.Node.ID))
	}
	return fmt.Sprintf("%s of %d", strings.Join(ids, " "), c.TotalCount())
}

func TestScope_WhatIsRead(t *testing.T) {
	for _, role := range []muster.Role{muster.Viewer, muster.Operator} {
		t.Run(string(role), func(t *testing.T) {
			w := newTown(t, role)
			seen, page := w.Seen(w.holder), muster.PageInput{}
			for what, c := range map[string]struct{ got, want string }{
				"nodes":                    {nodeIDs(seen.Nodes(nil, page)), "a1 a2 of 2"},
				"nodes, one at a time":     {nodeIDs(seen.Nodes(nil, muster.PageInput{First: new(1)})), "a1 of 2"},
				"instances":                {instanceIDs(seen.Instances(nil, page)), string(w.in.ID) + " of 1"},
				"instances of a node":      {instanceIDs(seen.Instances(&muster.InstanceFilter{NodeID: new("a1")}, page)), string(w.in.ID) + " of 1"},
				"instances after another":  {instanceIDs(seen.Instances(nil, muster.PageInput{After: edgeOf(t, w)})), " of 1"},
				"everybody's nodes":        {nodeIDs(w.Seen(ctx).Nodes(nil, page)), "a1 a2 b1 of 3"},
				"everybody's instances":    {instanceIDs(w.Seen(ctx).Instances(nil, page)), "i-1 i-2 i-3 of 3"},
				"a scope that is none yet": {nodeIDs(w.Seen(scoped(t, w, "zzz*")).Nodes(nil, page)), " of 0"},
			} {
				if c.got != c.want {
					t.Errorf("%s: %q, want %q", what, c.got, c.want)
				}
			}
			for id, want := range map[string]bool{"a1": true, string(w.a1.UID): true, "b1": false, string(w.b1.UID): false} {
				if (seen.Node(id) != nil) != want {
					t.Errorf("node %s is seen: %v", id, !want)
				}
			}
			for i, want := range map[*muster.Instance]bool{w.in: true, w.out: false, w.waits: false} {
				if (seen.Instance(i.ID) != nil) != want {
					t.Errorf("instance %s is seen: %v", i.ID, !want)
				}
			}
			_, err := seen.Instances(&muster.InstanceFilter{NodeID: new("b1")}, page)
			foreign := err
			_, err = seen.Instances(&muster.InstanceFilter{NodeID: new("none")}, page)
			if muster.CodeOf(foreign) != muster.NotFound || strings.ReplaceAll(foreign.Error(), "b1", "none") != err.Error() {
				t.Errorf("a node out of the scope is told from one that is not there: %v and %v", foreign, err)
			}
			h := seen.ClusterHealth()
			if n := h.Nodes[0].Count; n != 2 || len(h.Instances) != 1 || h.Instances[0].Count != 1 {
				t.Errorf("health counts %d nodes and %+v", n, h.Instances)
			}
			volumes, err := seen.Volumes(nil, page)
			if err != nil || volumes.TotalCount() != 2 || slices.ContainsFunc(volumes.Edges, func(e *muster.VolumeEdge) bool { return e.Node.NodeUID != w.a1.UID }) {
				t.Errorf("%d volumes, %v", volumes.TotalCount(), err)
			}
			_, err = seen.Volumes(new("b1"), page)
			wantCode(t, err, muster.NotFound)
		})
	}
}

// edgeOf is the cursor of the instance that is out of the scope.
func edgeOf(t *testing.T, w *town) *string {
	t.Helper()
	c, err := w.Instances(&muster.InstanceFilter{NodeID: new("b1")}, muster.PageInput{})
	if err != nil {
		t.Fatal(err)
	}
	return &c.Edges[0].Cursor
}

func scoped(t *testing.T, w *town, patterns ...string) context.Context {
	t.Helper()
	_, text := w.made(t, muster.CreateAccessKeyInput{Name: "scoped", Role: muster.Operator, Scope: &muster.KeyScope{Nodes: patterns}})
	return w.world.holder(t, text)
}

func TestScope_Changes(t *testing.T) {
	w := newTown(t, muster.Viewer)
	for range 20 { // much that is not seen, before a little that is
		for _, f := range []func() error{
			func() error { _, _, err := w.CordonNode(ctx, "b1", ""); return err },
			func() error { _, _, err := w.UncordonNode(ctx, "b1"); return err },
		} {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, _, err := w.CordonNode(ctx, "a1", "last"); err != nil {
		t.Fatal(err)
	}
	var got []string
	var since *muster.Cursor
	for {
		page, err := w.Changes(w.holder, since, nil, new(2))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Edges {
			got = append(got, string(e.Node.Kind)+" "+e.Node.ObjectID)
			since = new(e.Cursor)
		}
		if !page.PageInfo.HasNextPage {
			break
		}
	}
	want := []string{"NODE " + string(w.a1.UID), "NODE " + string(w.a2.UID), "INSTANCE " + string(w.in.ID), "NODE " + string(w.a1.UID)}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("changes\n%q, want\n%q", got, want)
	}
	before := w.store.Statements()
	if _, err := w.Changes(w.holder, nil, nil, new(1)); err != nil {
		t.Fatal(err)
	}
	if n := w.store.Statements() - before; n > 2 {
		t.Errorf("%d reads of the log for one change", n)
	}
	for _, id := range []string{"b1", string(w.b1.UID), string(w.out.ID), string(w.waits.ID), "k-1", "t-1"} {
		if page, err := w.Changes(w.holder, nil, &id, nil); err != nil || len(page.Edges) > 0 {
			t.Errorf("%d changes of %s, %v", len(page.Edges), id, err)
		}
	}
	// Those of keys and tokens are for nobody.
	for _, id := range []string{"k-1", "t-1"} {
		if page, err := w.Changes(ctx, nil, &id, nil); err != nil || len(page.Edges) > 0 {
			t.Errorf("%d changes of %s for an ADMIN, %v", len(page.Edges), id, err)
		}
	}
}

// what is told of the world's changes, in short.
func brief(e *muster.Event) string {
	line := string(e.Type)
	switch {
	case e.Node != nil:
		line += " " + string(e.Node.ID)
	case e.Instance != nil:
		line += " " + string(e.Instance.ID)
	}
	if e.Left {
		line += " left"
	}
	return line
}

func TestScope_Subscriptions(t *testing.T) {
	for name, c := range map[string]struct {
		watch func(context.Context, *town) (<-chan *muster.Event, error)
		want  []string
	}{
		"nodes": {func(ctx context.Context, w *town) (<-chan *muster.Event, error) {
			return w.WatchNodes(ctx, nil, watch.Request{Initial: true})
		}, []string{"PRESENT a1", "PRESENT a2", "SYNCED", "CHANGE a1", "CHANGE a2 left"}},
		"instances": {func(ctx context.Context, w *town) (<-chan *muster.Event, error) {
			return w.WatchInstances(ctx, nil, watch.Request{Initial: true})
		}, []string{"PRESENT i-1", "SYNCED", "CHANGE i-4", "CHANGE i-4 "}},
		"instances of a status": {func(ctx context.Context, w *town) (<-chan *muster.Event, error) {
			return w.WatchInstances(ctx, &muster.InstanceFilter{Status: []muster.InstanceStatus{muster.Provisioning}}, watch.Request{Initial: true})
		}, []string{"PRESENT i-1", "SYNCED", "CHANGE i-4", "CHANGE i-4 left"}},
		"health": {func(ctx context.Context, w *town) (<-chan *muster.Event, error) {
			return w.WatchHealth(ctx, nil, watch.Request{Initial: true})
		}, []string{"PRESENT a1", "PRESENT a2", "PRESENT i-1", "SYNCED", "CHANGE i-4", "CHANGE a2 left", "CHANGE i-4 "}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTown(t, muster.Viewer)
			ctx, cancel := context.WithCancel(w.holder)
			defer cancel()
			events, err := c.watch(ctx, w)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			take := func() {
				got = append(got, brief(<-events))
			}
			for len(got) == 0 || got[len(got)-1] != "SYNCED" {
				take()
			}
			w.happen(t)
			for len(got) < len(c.want) {
				take()
			}
			for k := range got {
				if strings.TrimSpace(c.want[k]) != got[k] {
					t.Fatalf("told\n%q, want\n%q", got, c.want)
				}
			}
		})
	}
}

// happen has everything happen inside and outside of the scope, the outside first.
func (w *town) happen(t *testing.T) {
	t.Helper()
	for _, id := range []string{"b1", "a2"} {
		in := launch(muster.Nano)
		in.NodeID = &id
		if id == "a2" { // i-4 is the one inside
			w.launch(t, in)
			continue
		}
		if _, _, err := w.CordonNode(ctx, "b1", ""); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.TerminateInstance(ctx, w.out.ID); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.LabelInstance(ctx, muster.LabelInput{ID: string(w.waits.ID), Set: muster.Map{"a": "b"}}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.RemoveNode(ctx, "b1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := w.CordonNode(ctx, "a1", ""); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.RemoveNode(ctx, "a2"); err != nil {
		t.Fatal(err)
	}
}

func TestScope_SubscriptionsByWhatIsOutside(t *testing.T) {
	w := newTown(t, muster.Viewer)
	q := watch.Request{}
	for name, err := range map[string]error{
		"instances of a node":   errOf(w.WatchInstances(w.holder, &muster.InstanceFilter{NodeID: new("b1")}, q)),
		"health of a node":      errOf(w.WatchHealth(w.holder, &muster.HealthFilter{NodeID: new("b1")}, q)),
		"health of a uid":       errOf(w.WatchHealth(w.holder, &muster.HealthFilter{NodeID: new(string(w.b1.UID))}, q)),
		"health of what waits":  errOf(w.WatchHealth(w.holder, &muster.HealthFilter{InstanceID: &w.waits.ID}, q)),
		"health of an instance": errOf(w.WatchHealth(w.holder, &muster.HealthFilter{InstanceID: &w.out.ID}, q)),
		"logs":                  w.InstanceLogs(w.holder, muster.InstanceLogsInput{ID: w.out.ID}, func(*muster.LogPiece) error { return errors.New("a piece") }),
	} {
		if muster.CodeOf(err) != muster.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestScope_ChangesOfWhatIsOutside(t *testing.T) {
	w := newTown(t, muster.Operator)
	for name, do := range map[string]func(ctx context.Context, node string, instance muster.InstanceID) error{
		"cordon": func(ctx context.Context, n string, _ muster.InstanceID) error {
			_, _, err := w.CordonNode(ctx, n, "")
			return err
		},
		"uncordon": func(ctx context.Context, n string, _ muster.InstanceID) error {
			_, _, err := w.UncordonNode(ctx, n)
			return err
		},
		"drain": func(ctx context.Context, n string, _ muster.InstanceID) error {
			_, _, err := w.DrainNode(ctx, muster.DrainNodeInput{ID: n})
			return err
		},
		"label": func(ctx context.Context, n string, _ muster.InstanceID) error {
			_, _, err := w.LabelNode(ctx, muster.LabelInput{ID: n, Set: muster.Map{"a": "b"}})
			return err
		},
		"remove a volume": func(ctx context.Context, n string, _ muster.InstanceID) error {
			_, _, err := w.RemoveVolume(ctx, muster.RemoveVolumeInput{Name: "everywhere", NodeID: &n})
			return err
		},
		"label an instance": func(ctx context.Context, _ string, i muster.InstanceID) error {
			_, _, err := w.LabelInstance(ctx, muster.LabelInput{ID: string(i), Set: muster.Map{"a": "b"}})
			return err
		},
		"stop": func(ctx context.Context, _ string, i muster.InstanceID) error {
			_, _, err := w.StopInstance(ctx, i)
			return err
		},
		"start": func(ctx context.Context, _ string, i muster.InstanceID) error {
			_, _, err := w.StartInstance(ctx, i)
			return err
		},
		"restart": func(ctx context.Context, _ string, i muster.InstanceID) error {
			_, _, err := w.RestartInstance(ctx, i)
			return err
		},
		"adopt": func(ctx context.Context, _ string, i muster.InstanceID) error {
			if _, _, err := w.AdoptInstance(ctx, i); muster.CodeOf(err) != muster.Conflict { // it is not UNKNOWN
				return err
			}
			return nil
		},
		"launch there": func(ctx context.Context, n string, _ muster.InstanceID) error {
			in := launch(muster.Nano)
			in.NodeID = &n
			_, _, err := w.LaunchInstance(ctx, in)
			return err
		},
	} {
		for _, node := range []string{"b1", string(w.b1.UID)} {
			if err := do(w.holder, node, w.out.ID); muster.CodeOf(err) != muster.NotFound {
				t.Errorf("%s outside: %v", name, err)
			}
		}
		if name == "label an instance" || name == "stop" || name == "restart" {
			if err := do(w.holder, "", w.waits.ID); muster.CodeOf(err) != muster.NotFound {
				t.Errorf("%s of what waits: %v", name, err)
			}
		}
		if err := do(w.holder, "a1", w.in.ID); err != nil && muster.CodeOf(err) != muster.Conflict && muster.CodeOf(err) != muster.NoCapacity {
			t.Errorf("%s inside: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"terminate": errOf3(w.TerminateInstance(w.holder, w.out.ID)),
		"remove":    errOf3(w.RemoveNode(w.holder, "b1")),
		"forget":    errOf3(w.ForgetNode(w.holder, "b1")),
	} {
		if muster.CodeOf(err) != muster.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"release the brake": errOf3(w.ReleaseBrake(w.holder, "")),
		"put an image":      errOf3(w.PutImage(w.holder, muster.Image{Name: "x", Digest: "sha256:" + strings.Repeat("a", 64)})),
		"remove an image":   func() error { _, _, _, err := w.RemoveImage(w.holder, "x"); return err }(),
	} {
		if muster.CodeOf(err) != muster.Forbidden || !strings.Contains(err.Error(), "team-a") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if i := w.Instance(w.out.ID); i.Status != muster.Provisioning || len(i.Labels) > 0 {
		t.Errorf("the instance outside is %+v", i)
	}
	if n := w.Node("b1"); !n.Schedulable || len(n.Labels) > 0 || len(n.RemovingVolumes) > 0 {
		t.Errorf("the node outside is %+v", n)
	}
}

func errOf3[A, B any](_ A, _ B, err error) error { return err }

func TestScope_Forgetting(t *testing.T) {
	w := newTown(t, muster.Operator)
	_, text := w.token(t, muster.CreateJoinTokenInput{Uses: new(2)})
	inside, outside := w.joined(t, text, newMachine(t), "a9"), w.joined(t, text, newMachine(t), "b9")
	_, _, err := w.ForgetNode(w.holder, "b9") // it has joined and not registered
	wantCode(t, err, muster.NotFound)
	if err := opens(w.world, outside.Key); err != nil {
		t.Error(err)
	}
	if _, _, err := w.ForgetNode(w.holder, "a9"); err != nil {
		t.Error(err)
	}
	wantCode(t, opens(w.world, inside.Key), muster.Unauthenticated)
}

func TestScope_Launching(t *testing.T) {
	w := newTown(t, muster.Operator)
	for range 4 { // b1 is as free as the others, and never chosen
		i, _, err := w.LaunchInstance(w.holder, launch(muster.Nano))
		if err != nil || i.NodeUID == w.b1.UID {
			t.Fatalf("%+v, %v", i, err)
		}
	}
	huge := launch(muster.Nano)
	huge.NodeSelector = muster.Map{"none": "has it"}
	_, _, err := w.LaunchInstance(w.holder, huge)
	wantCode(t, err, muster.NoCapacity)
	if text := fmt.Sprint(err.(*muster.Error).Details); strings.Contains(text, "b1") || !strings.Contains(text, "a1") {
		t.Errorf("the refusal tells of %s", text)
	}
	huge.Queue = true
	_, _, err = w.LaunchInstance(w.holder, huge)
	wantCode(t, err, muster.Invalid) // it could be placed anywhere later
	huge.NodeID = new("a2")
	if i, _, err := w.LaunchInstance(w.holder, huge); err != nil || i.Status != muster.Pending || w.Seen(w.holder).Instance(i.ID) == nil {
		t.Errorf("waiting for a node of the scope: %+v, %v", i, err)
	}
	volume := launch(muster.Nano)
	volume.Volumes = []muster.VolumeMount{{Name: "on-b1", Path: "/data"}}
	_, _, err = w.LaunchInstance(w.holder, volume) // it would be made a second time
	wantCode(t, err, muster.NoCapacity)
	if text := fmt.Sprint(err.(*muster.Error).Details); strings.Contains(text, "node b1") || !strings.Contains(text, "(another)") {
		t.Errorf("the refusal tells of %s", text)
	}
	volume.Volumes[0].Name = "on-a1"
	if i, _, err := w.LaunchInstance(w.holder, volume); err != nil || i.NodeUID != w.a1.UID {
		t.Errorf("a volume of the scope: %+v, %v", i, err)
	}
	// A requestId of a wider key's launch is that key's.
	in := launch(muster.Nano)
	in.RequestID = "r1"
	first := w.launch(t, in)
	if second, _, err := w.LaunchInstance(w.holder, in); err != nil || second.ID == first.ID {
		t.Errorf("%s and %s, %v", first.ID, second.ID, err)
	}
}
