package registry_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

// told is what a subscription delivers of the changes of a script, a line each.
func told(t *testing.T, events <-chan *muster.Event, n int) []string {
	t.Helper()
	var lines []string
	for e := range events {
		if e.Type == muster.EventChange {
			line := fmt.Sprintf("%s %s>%s", e.Kind, e.PreviousStatus, e.Status)
			if e.Left {
				line += " left"
			}
			lines = append(lines, line)
		}
		if len(lines) == n {
			break
		}
	}
	return lines
}

func TestWatch_Filters(t *testing.T) {
	running := muster.InstanceFilter{Status: []muster.InstanceStatus{muster.Provisioning}}
	name, schedulable := "n1", true
	i1 := muster.InstanceID("i-1")
	for title, c := range map[string]struct {
		watch func(context.Context, *world) (<-chan *muster.Event, error)
		want  []string
	}{
		"instances that are being provisioned": {func(ctx context.Context, w *world) (<-chan *muster.Event, error) {
			return w.WatchInstances(ctx, &running, watch.Request{})
		}, []string{"INSTANCE >PROVISIONING", "INSTANCE PROVISIONING>RUNNING left"}},
		"instances of a node by its name": {func(ctx context.Context, w *world) (<-chan *muster.Event, error) {
			return w.WatchInstances(ctx, &muster.InstanceFilter{NodeID: &name}, watch.Request{})
		}, []string{"INSTANCE >PROVISIONING", "INSTANCE PROVISIONING>RUNNING", "INSTANCE RUNNING>LOST"}},
		"nodes that are schedulable": {func(ctx context.Context, w *world) (<-chan *muster.Event, error) {
			return w.WatchNodes(ctx, &muster.NodeFilter{Schedulable: &schedulable}, watch.Request{})
		}, []string{"NODE HEALTHY>HEALTHY left"}},
		"every node": {func(ctx context.Context, w *world) (<-chan *muster.Event, error) {
			return w.WatchNodes(ctx, nil, watch.Request{})
		}, []string{"NODE HEALTHY>HEALTHY", "NODE HEALTHY>REMOVED left"}},
		"the health of a node by its name": {func(ctx context.Context, w *world) (<-chan *muster.Event, error) {
			return w.WatchHealth(ctx, &muster.HealthFilter{NodeID: &name}, watch.Request{})
		}, []string{"INSTANCE >PROVISIONING", "INSTANCE PROVISIONING>RUNNING", "NODE HEALTHY>REMOVED left", "INSTANCE RUNNING>LOST"}},
		"the health of an instance, and so of its node": {func(ctx context.Context, w *world) (<-chan *muster.Event, error) {
			w.launch(t, launch(muster.Nano))
			return w.WatchHealth(ctx, &muster.HealthFilter{InstanceID: &i1}, watch.Request{})
		}, []string{"INSTANCE PROVISIONING>FAILED", "NODE HEALTHY>REMOVED left", "INSTANCE FAILED>LOST"}},
		"the health of nodes only": {func(ctx context.Context, w *world) (<-chan *muster.Event, error) {
			return w.WatchHealth(ctx, &muster.HealthFilter{Kinds: []muster.ChangeKind{muster.KindNode}}, watch.Request{})
		}, []string{"NODE HEALTHY>REMOVED left"}},
	} {
		t.Run(title, func(t *testing.T) {
			w := open(t, setup{})
			n := w.join(t, "n1", 4, 4096)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			events, err := c.watch(ctx, w)
			if err != nil {
				t.Fatal(err)
			}
			if e := <-events; e.Type != muster.EventSynced {
				t.Fatalf("the first event is %s", e.Type)
			}
			i := w.launch(t, launch(muster.Nano))
			w.report(t, n, 1, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Running})
			if _, _, err := w.CordonNode(ctx, "n1", ""); err != nil {
				t.Fatal(err)
			}
			if _, _, err := w.RemoveNode(ctx, "n1"); err != nil {
				t.Fatal(err)
			}
			got := told(t, events, len(c.want))
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("told\n%q, want\n%q", got, c.want)
			}
		})
	}
}

func TestWatch_PresentStateFirst(t *testing.T) {
	w := open(t, setup{})
	w.join(t, "n1", 4, 4096)
	w.launch(t, launch(muster.Nano))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := w.WatchHealth(ctx, nil, watch.Request{Initial: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for e := range events {
		got = append(got, string(e.Type)+" "+string(e.Kind))
		if e.Type == muster.EventSynced {
			if e.Resume == nil || e.Resume.Position != w.View().Head() {
				t.Errorf("SYNCED resumes from %v, the state is of %v", e.Resume, w.View().Head())
			}
			break
		}
	}
	if want := "[PRESENT NODE PRESENT INSTANCE SYNCED ]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	_, err = w.WatchInstances(ctx, &muster.InstanceFilter{NodeID: new("nosuch")}, watch.Request{})
	wantCode(t, err, muster.NotFound)
}
