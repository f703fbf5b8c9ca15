package registry_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
)

func TestDrainNode(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		n := w.join(t, "n1", 8, 8192)
		defer beating(t, w, n)()
		quick, slow := w.launch(t, launch(muster.Nano)), w.launch(t, launch(muster.Nano))
		running := map[muster.InstanceID]muster.InstanceStatus{quick.ID: muster.Running, slow.ID: muster.Running}
		w.report(t, n, 1, running)
		deadline := 10 * time.Minute
		drained, _, err := w.DrainNode(ctx, muster.DrainNodeInput{ID: "n1", Deadline: &deadline, Reason: "disk swap"})
		if err != nil || drained.Schedulable || drained.Drain == nil {
			t.Fatalf("drain: %+v, %v", drained, err)
		}
		_, _, err = w.LaunchInstance(ctx, launch(muster.Nano))
		wantCode(t, err, muster.NoCapacity)

		running[quick.ID] = muster.Stopped // it ends by itself
		w.report(t, n, 2, running)
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		wantStatus(t, w, slow.ID, muster.Running)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if i := wantStatus(t, w, slow.ID, muster.Stopping); i.Desired != muster.WantStopped || i.StatusReason != "its node is drained" {
			t.Errorf("at the deadline %+v", i)
		}
		if d := w.Node("n1").Drain; !d.Stopping || d.Done != nil {
			t.Errorf("at the deadline the drain is %+v", d)
		}
		running[slow.ID] = muster.Stopped
		w.report(t, n, 3, running)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d := w.Node("n1").Drain; d.Done == nil {
			t.Errorf("with nothing left the drain is %+v", d)
		}
		if got, _, err := w.UncordonNode(ctx, "n1"); err != nil || got.Drain != nil || !got.Schedulable {
			t.Errorf("uncordon: %+v, %v", got, err)
		}
		checkLog(t, w)
	})
}

func TestDrainNode_CancelledByUncordon(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		n := w.join(t, "n1", 8, 8192)
		defer beating(t, w, n)()
		i := w.launch(t, launch(muster.Nano))
		w.report(t, n, 1, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Running})
		minute := time.Minute
		if _, _, err := w.DrainNode(ctx, muster.DrainNodeInput{ID: "n1", Deadline: &minute}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.UncordonNode(ctx, "n1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		wantStatus(t, w, i.ID, muster.Running)
		before := -minute
		_, _, err := w.DrainNode(ctx, muster.DrainNodeInput{ID: "n1", Deadline: &before})
		wantCode(t, err, muster.Invalid)
	})
}

// beating beats for a node until the function that it returns is called.
func beating(t *testing.T, w *world, n *muster.Node) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(10 * time.Second):
				_, _ = w.Heartbeat(ctx, muster.HeartbeatInput{UID: n.UID, Incarnation: n.Incarnation})
			}
		}
	}()
	return func() { close(done) }
}

func TestLabels(t *testing.T) {
	w := open(t, setup{})
	in := nodeInput("n1", 4, 4096)
	in.Labels = muster.Map{"zone": "a", "disk": "ssd"}
	out, err := w.RegisterNode(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	n, _, err := w.LabelNode(ctx, muster.LabelInput{ID: "n1", Set: muster.Map{"zone": "b", "rack": "7"}, Remove: []string{"disk"}})
	want := muster.Map{"zone": "b", "rack": "7"}
	if err != nil || len(n.Labels) != 2 || !n.Labels.Matches(want) {
		t.Fatalf("labelled %+v, %v", n, err)
	}
	in.UID, in.Incarnation, in.Labels = &out.Node.UID, 2, muster.Map{"zone": "c", "disk": "hdd", "new": "yes"}
	if out, err = w.RegisterNode(ctx, in); err != nil || len(out.Node.Labels) != 3 || !out.Node.Labels.Matches(muster.Map{"zone": "b", "rack": "7", "new": "yes"}) {
		t.Errorf("after a new registration %+v, %v", out.Node.Labels, err)
	}
	i := w.launch(t, launch(muster.Nano))
	labelled, _, err := w.LabelInstance(ctx, muster.LabelInput{ID: string(i.ID), Set: muster.Map{"app": "web"}})
	if err != nil || labelled.Labels["app"] != "web" {
		t.Errorf("labelled %+v, %v", labelled, err)
	}
	before := w.ServerInfo().Revision
	if _, _, err := w.LabelInstance(ctx, muster.LabelInput{ID: string(i.ID), Set: muster.Map{"app": "web"}}); err != nil || w.ServerInfo().Revision != before {
		t.Errorf("the same again made a change, or %v", err)
	}
	for name, in := range map[string]muster.LabelInput{
		"nothing": {ID: "n1"}, "both": {ID: "n1", Set: muster.Map{"a": "b"}, Remove: []string{"a"}}, "a NUL": {ID: "n1", Set: muster.Map{"a": "\x00"}},
	} {
		if _, _, err := w.LabelNode(ctx, in); muster.CodeOf(err) != muster.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	checkLog(t, w)
}
