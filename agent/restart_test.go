package agent_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

func TestAgent_AdoptsWhatRuns(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		id := w.cloud.launch()
		pass(15 * time.Second)
		pid := w.machine("k3f9-i-1-1").PID
		a.stop()
		if a.err != nil {
			t.Errorf("it ended with %v", a.err)
		}
		pass(time.Hour)
		w.start()
		pass(15 * time.Second)
		if m := w.machine("k3f9-i-1-1"); m.PID != pid || w.host.Launches("k3f9-i-1-1") != 1 {
			t.Errorf("it was not adopted: %+v", m)
		}
		w.want(id, muster.Running)
		if *w.cloud.seen(id).PID != pid {
			t.Errorf("its PID is reported as %d", *w.cloud.seen(id).PID)
		}
		in := w.cloud.registrations()
		if len(in) != 2 || in[0].Incarnation != 1 || in[1].Incarnation != 2 || *in[1].UID != "n-1" || len(in[1].Instances) != 1 || in[1].AppliedRevision != 0 {
			t.Errorf("it registered as %+v", in)
		}
	})
}

type plain struct{ driver.Driver }

func TestAgent_StartsAgainAfterTheHostWasRestarted(t *testing.T) {
	for _, able := range []bool{true, false} {
		t.Run(fmt.Sprint("a driver that can: ", able), func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				if !able {
					w.wrap = func(d driver.Driver) driver.Driver { return plain{d} }
				}
				a := w.start()
				runs, ended, stopped, dropped := w.cloud.launch(), w.cloud.launch("exit", "4", "x"), w.cloud.launch(), w.cloud.launch()
				pass(15 * time.Second)
				w.cloud.stop(stopped)
				pass(15 * time.Second)
				a.stop()
				w.host.Restart()
				w.boot = "boot-2"
				w.cloud.terminate(dropped)
				w.cloud.with(func() { w.cloud.fail = unavailable("Assignments") })
				a = w.start()
				pass(time.Minute)
				w.want(runs, muster.Running) // not known to have ended for good
				a.stop()                     // before it could do anything
				w.cloud.with(func() { w.cloud.fail = nil })
				a = w.start()
				pass(time.Minute)
				w.want(ended, muster.Failed)
				w.want(stopped, muster.Stopped)
				w.want(dropped, muster.Terminated)
				if !able {
					w.want(runs, muster.Failed)
					w.cloud.with(func() { w.cloud.fail = unavailable("Assignments") })
					a.stop()
					w.start()
					pass(time.Minute)
					w.want(runs, muster.Failed)
					return
				}
				w.want(runs, muster.Running)
				w.host.Exit("k3f9-i-1-1", 0, "") // now by itself
				pass(time.Minute)
				w.want(runs, muster.Stopped)
				for machine, want := range map[string]int{"k3f9-i-1-1": 2, "k3f9-i-2-1": 1, "k3f9-i-3-1": 1} {
					if n := w.host.Launches(machine); n != want {
						t.Errorf("%s was launched %d times, want %d", machine, n, want)
					}
				}
			})
		})
	}
}

func TestAgent_FinishesItsLaunchesAtItsEnd(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.host.OnLaunch(func(ctx context.Context, _ driver.Spec) error { pause(ctx, 5*time.Second); return ctx.Err() })
		a := w.start()
		id := w.cloud.launch()
		a.nudge(id, 2, 1)
		began := time.Now()
		a.stop()
		if m := w.machine("k3f9-i-1-1"); m == nil || m.State != driver.Running || time.Since(began) != 5*time.Second {
			t.Errorf("after %s it is %+v", time.Since(began), m)
		}
	})
}

func TestAgent_AbandonsALaunchThatHangsAtItsEnd(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.host.OnLaunch(func(ctx context.Context, _ driver.Spec) error { <-ctx.Done(); return ctx.Err() })
		a := w.start()
		id := w.cloud.launch()
		a.nudge(id, 2, 1)
		began := time.Now()
		a.stop()
		if got := w.host.Machines(); len(got) != 0 || time.Since(began) != 10*time.Second || a.err != nil {
			t.Errorf("after %s there are %v: %v", time.Since(began), got, a.err)
		}
		w.host.OnLaunch(nil)
		w.start()
		pass(15 * time.Second)
		w.want(id, muster.Running)
	})
}

func TestAgent_NeverLaunchesWhatWasNamedAsTerminated(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		id := w.cloud.launch()
		pass(15 * time.Second)
		// It was taken out and its instance terminated while it could not be
		// reached: its assignments are from before that.
		w.cloud.with(func() {
			w.cloud.instances[id].status, w.cloud.known = muster.Terminated, false
			w.cloud.fail = unavailable("Assignments")
		})
		pass(time.Minute)
		if m := w.machine("k3f9-i-1-1"); m != nil || w.host.Launches("k3f9-i-1-1") != 1 {
			t.Errorf("it was launched %d times and is %+v, want it gone", w.host.Launches("k3f9-i-1-1"), m)
		}
		w.cloud.with(func() { w.cloud.fail = nil })
		next := w.cloud.launch()
		pass(time.Minute)
		w.want(next, muster.Running)
	})
}
