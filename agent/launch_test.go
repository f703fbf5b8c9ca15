package agent_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

func TestAgent_LaunchesOnANudge(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		id := w.cloud.launch()
		began := time.Now()
		if status := a.nudge(id, 2, 1); status != 202 {
			t.Errorf("the nudge was answered with %d", status)
		}
		w.want(id, muster.Running)
		if time.Since(began) != 0 {
			t.Errorf("it took %s", time.Since(began))
		}
		want := driver.Spec{
			Machine: "k3f9-i-1-1", Disk: "k3f9-i-1", Instance: "i-1", Generation: 1, Epoch: "e1", Hostname: "name-i-1",
			Image: "minimal", Env: map[string]string{"PASSWORD": secret}, CPUPercent: 25, MemoryMB: 128,
			Addr: "10.213.7.3/24", Gateway: "10.213.7.1",
		}
		m := w.machine("k3f9-i-1-1")
		if diff := cmp.Diff(want, m.Spec); diff != "" {
			t.Error(diff)
		}
		seen := muster.InstanceReportInput{
			Machine: "k3f9-i-1-1", Epoch: "e1", ID: "i-1", Generation: 1, Status: muster.Running, PID: &m.PID,
			Addr: "10.213.7.3", CPULimit: 25, MemLimitMB: 128, BaseImage: "minimal",
		}
		if diff := cmp.Diff(seen, w.cloud.seen(id)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAgent_HealsALostNudgeByABeat(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		id := w.cloud.launch()
		w.want(id, muster.Provisioning)
		pass(10 * time.Second)
		w.want(id, muster.Running)
	})
}

func TestAgent_ReportsProvisioningWhileItLaunches(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.host.OnLaunch(func(ctx context.Context, _ driver.Spec) error { pause(ctx, time.Minute); return nil })
		a := w.start()
		ids := []muster.InstanceID{}
		for range 6 { // more than are launched at once
			ids = append(ids, w.cloud.launch())
		}
		a.nudge(ids[5], 7, 1)
		report, _ := w.cloud.report()
		if len(report.Instances) != 6 || report.AppliedRevision != 7 {
			t.Errorf("of 6 instances %d are in the report that has applied %d", len(report.Instances), report.AppliedRevision)
		}
		for _, r := range report.Instances {
			if r.Status != muster.Provisioning {
				t.Errorf("%s is reported as %s", r.Machine, r.Status)
			}
		}
		pass(3 * time.Minute)
		for _, id := range ids {
			w.want(id, muster.Running)
		}
	})
}

func TestAgent_LaunchesAFewAtOnceAndBeatsMeanwhile(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		var now, most atomic.Int64
		w.host.OnLaunch(func(ctx context.Context, _ driver.Spec) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			pause(ctx, time.Minute)
			return nil
		})
		a := w.start()
		for range 20 {
			w.cloud.launch()
		}
		a.nudge("i-20", 21, 1)
		pass(5*time.Minute + time.Second)
		if most.Load() != 4 || now.Load() != 0 {
			t.Errorf("%d launches ran at once and %d still do", most.Load(), now.Load())
		}
		if n := len(w.cloud.times("Heartbeat")); n < 30 || n > 34 {
			t.Errorf("%d beats in five minutes of launching", n)
		}
	})
}

func TestAgent_ReportsALaunchThatFailed(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.host.OnLaunch(func(context.Context, driver.Spec) error { return errors.New("the host lacks a tool") })
		a := w.start()
		id := w.cloud.launch()
		pass(time.Hour)
		w.want(id, muster.Failed)
		if seen := w.cloud.seen(id); seen.Reason != "the host lacks a tool" {
			t.Errorf("it was reported as %+v", seen)
		}
		w.host.OnLaunch(nil)
		a.stop()
		a = w.start()
		pass(time.Hour)
		w.want(id, muster.Failed) // what failed is not tried again
		w.cloud.start(id)
		a.nudge(id, 3, 2)
		w.want(id, muster.Running)
		if n := w.host.Launches("k3f9-i-1-2"); n != 1 {
			t.Errorf("the second generation was launched %d times", n)
		}
	})
}

func TestAgent_ReportsAnImageThatIsNotThere(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		w.host.SetImages("other")
		id := w.cloud.launch()
		pass(15 * time.Second)
		w.want(id, muster.Failed)
		if newest, _ := w.cloud.report(); !slices.Equal(newest.Images, []string{"other"}) {
			t.Errorf("the images were reported as %v", newest.Images)
		}
	})
}

type mute struct{ driver.Driver }

func (mute) Watch(ctx context.Context) <-chan string {
	out := make(chan string)
	context.AfterFunc(ctx, func() { close(out) })
	return out
}

func TestAgent_LaunchesWhatVanishedAgain(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.wrap = func(d driver.Driver) driver.Driver { return mute{d} }
		w.start()
		id := w.cloud.launch()
		pass(15 * time.Second)
		if err := drivertest.NewFake(w.host).Remove(t.Context(), "k3f9-i-1-1"); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		w.want(id, muster.Running)
		if n := w.host.Launches("k3f9-i-1-1"); n != 2 {
			t.Errorf("it was launched %d times", n)
		}
	})
}
