package registry_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

func TestPendingBecause(t *testing.T) {
	w := open(t, setup{opts: registry.Options{PublishFrom: 30000, PublishTo: 30001}})
	w.join(t, "a", 8, 1024)
	w.join(t, "b", 8, 8192)
	full := w.launch(t, muster.LaunchInstanceInput{Type: muster.Small, Image: "minimal", NodeID: new("a")})
	if _, _, err := w.CordonNode(ctx, "b", "disk swap"); err != nil {
		t.Fatal(err)
	}
	queued := launch(muster.Medium)
	queued.Queue = true
	i := w.launch(t, queued)
	wants := func(when string, want ...*muster.Refusal) {
		t.Helper()
		got, err := w.Seen(ctx).PendingBecause(w.Instance(i.ID), nil)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", when, err, diff)
		}
	}
	cordoned := &muster.Refusal{NodeID: "b", Reason: "it is cordoned"}
	wants("while it waits", &muster.Refusal{
		NodeID: "a", Reason: "512 MiB of memory are free, 1024 are needed", Need: new(1024), Have: new(512),
	}, cordoned)
	if got, err := w.Seen(ctx).PendingBecause(i, new(1)); err != nil || len(got) != 1 || got[0].NodeID != "a" {
		t.Errorf("the first one: %v, %v", got, err)
	}
	if _, err := w.Seen(ctx).PendingBecause(i, new(101)); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("101 of them: %v, want INVALID", err)
	}

	// A port of the node is what speaks against it.
	in := muster.DeployServiceInput{Name: "web", Command: []string{"httpd"}, Port: 80, Publish: &muster.Published{Port: 8080, Protocol: muster.TCP}}
	in.InstanceID = &full.ID
	holder, _, err := w.DeployService(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	in.InstanceID, in.Type, in.Queue = nil, new(muster.Nano), true
	waiting, _, err := w.DeployService(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	i = w.Instance(waiting.InstanceID)
	wants("with a port that is taken", &muster.Refusal{NodeID: "a", Reason: "its port 8080 is that of the service " + string(holder.ID)}, cordoned)

	if _, _, err := w.UncordonNode(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if i = w.Instance(i.ID); i.Status != muster.Provisioning {
		t.Fatalf("it is %s when b may be used", i.Status)
	}
	wants("when it does not wait")
	if got, err := w.Seen(ctx).PendingBecause(i, nil); err != nil || got != nil {
		t.Errorf("it is because of %v, %v when it does not wait, want nil", got, err)
	}
}

// A key for a part of the nodes learns nothing of the others.
func TestPendingBecause_IsOfNodesThatAreSeen(t *testing.T) {
	w := newTown(t, muster.Viewer)
	in := launch(muster.Nano)
	in.Queue, in.NodeSelector, in.NodeID = true, muster.Map{"none": "has it"}, new("a1")
	i := w.launch(t, in)
	want := []*muster.Refusal{
		{NodeID: "a1", Reason: "it lacks the labels that are asked for"},
		{NodeID: "a2", Reason: "another node was asked for"},
	}
	got, err := w.Seen(w.holder).PendingBecause(i, nil)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if all, _ := w.Seen(ctx).PendingBecause(i, nil); len(all) != 3 {
		t.Errorf("who sees all is told %v", all)
	}
}
