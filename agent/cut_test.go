package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

// altered lists machines otherwise than they are.
type altered struct {
	*drivertest.Fake
	change func([]driver.Status) []driver.Status
}

func (d altered) List(ctx context.Context) ([]driver.Status, error) {
	all, err := d.Fake.List(ctx)
	return d.change(all), err
}

func (w *world) alter(change func([]driver.Status) []driver.Status) {
	w.wrap = func(driver.Driver) driver.Driver { return altered{drivertest.NewFake(w.host), change} }
}

func TestAgent_TriesALaunchAgainThatWasCutOff(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.alter(func(all []driver.Status) []driver.Status {
			for k := range all {
				all[k].Cut = all[k].State == driver.Exited && w.host.Launches(all[k].Spec.Machine) < 3
			}
			return all
		})
		w.start()
		id := w.cloud.launch()
		pass(15 * time.Second)
		w.host.Exit("k3f9-i-1-1", 0, "") // as a launch that was cut off
		pass(15 * time.Second)
		w.want(id, muster.Running)
		w.host.Exit("k3f9-i-1-1", 0, "")
		pass(15 * time.Second)
		w.want(id, muster.Running)
		w.cloud.with(func() {
			for _, r := range w.cloud.reports {
				for _, i := range r.Instances {
					if i.Status == muster.Failed || i.Status == muster.Stopped {
						t.Errorf("it was reported as %s", i.Status)
					}
				}
			}
		})
		w.host.Exit("k3f9-i-1-1", 0, "") // the driver says no more that it was cut off
		pass(15 * time.Second)
		w.want(id, muster.Stopped)
		if n := w.host.Launches("k3f9-i-1-1"); n != 3 {
			t.Errorf("it was launched %d times, want 3", n)
		}
	})
}

// TestAgent_LooksAtALaunchThatGoesOn has an agent that finds a machine in the launch of an earlier one: nobody tells that it runs.
func TestAgent_LooksAtALaunchThatGoesOn(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		id := w.cloud.launch()
		pass(15 * time.Second)
		a.stop()
		runs := time.Now().Add(3 * time.Second)
		w.alter(func(all []driver.Status) []driver.Status {
			if time.Now().Before(runs) {
				for k := range all {
					all[k].State, all[k].PID = driver.Preparing, 0
				}
			}
			return all
		})
		w.cloud.with(func() { w.cloud.instances[id].status = muster.Provisioning })
		w.start()
		pass(2900 * time.Millisecond)
		w.want(id, muster.Provisioning)
		pass(600 * time.Millisecond) // much less than until the next beat
		w.want(id, muster.Running)
	})
}

// TestAgent_RemovesAPredecessor has an agent that was killed when a successor ran and its predecessor was not removed yet.
func TestAgent_RemovesAPredecessor(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		id := w.cloud.launch()
		pass(15 * time.Second)
		w.cloud.stop(id)
		pass(15 * time.Second)
		before := *w.machine("k3f9-i-1-1")
		w.cloud.start(id)
		pass(15 * time.Second)
		w.want(id, muster.Running)
		a.stop()
		removed := map[string]bool{}
		w.wrap = func(driver.Driver) driver.Driver {
			return remembering{altered{drivertest.NewFake(w.host), func(all []driver.Status) []driver.Status {
				if !removed[before.Spec.Machine] {
					all = append([]driver.Status{before}, all...)
				}
				return all
			}}, removed}
		}
		w.start()
		pass(15 * time.Second)
		w.want(id, muster.Running)
		if len(removed) != 1 || !removed["k3f9-i-1-1"] {
			t.Errorf("removed %v, want the first generation", removed)
		}
	})
}

// remembering notes what is removed.
type remembering struct {
	altered
	removed map[string]bool
}

func (d remembering) Remove(ctx context.Context, machine string) error {
	d.removed[machine] = true
	return d.altered.Remove(ctx, machine)
}
