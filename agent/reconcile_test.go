package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

func TestAgent_LeavesAPayloadThatEndedAlone(t *testing.T) {
	cases := map[string]struct {
		command []string
		status  muster.InstanceStatus
		code    int
	}{
		"in success": {[]string{"exit", "0", "bye"}, muster.Stopped, 0},
		"in failure": {[]string{"exit", "7", "ouch"}, muster.Failed, 7},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				a := w.start()
				id := w.cloud.launch(c.command...)
				pass(20 * time.Second)
				w.want(id, c.status)
				seen := w.cloud.seen(id)
				if seen.ExitCode == nil || *seen.ExitCode != c.code || seen.Output != c.command[2]+"\n" || seen.PID != nil {
					t.Errorf("the end was reported as %+v", seen)
				}
				pass(time.Hour)
				a.stop()
				w.start()
				pass(time.Hour)
				if n := w.host.Launches("k3f9-i-1-1"); n != 1 {
					t.Errorf("it was launched %d times", n)
				}
				w.want(id, c.status)
			})
		})
	}
}

func TestAgent_ReportsAnEndAtOnce(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		id := w.cloud.launch()
		pass(15 * time.Second)
		began := time.Now()
		w.host.Exit("k3f9-i-1-1", 3, "")
		synctest.Wait()
		w.want(id, muster.Failed)
		if time.Since(began) != 0 || w.cloud.seen(id).Reason != "exited with status 3" {
			t.Errorf("after %s: %+v", time.Since(began), w.cloud.seen(id))
		}
	})
}

func TestAgent_StopsAndStartsOnTheSameDisk(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		w.host.Program("keep", func(p *drivertest.Process) int {
			p.Disk.Write("generation", fmt.Sprint(p.Spec.Generation))
			select {
			case <-p.Term:
			case <-p.Killed:
			}
			return 143
		})
		id := w.cloud.launch("keep")
		a.nudge(id, 2, 1)
		w.cloud.stop(id)
		a.nudge(id, 3, 1)
		w.want(id, muster.Stopped)
		if m := w.machine("k3f9-i-1-1"); m == nil || m.State != driver.Exited {
			t.Errorf("it is %+v after it was stopped", m)
		}
		pass(time.Hour)
		var before string
		w.host.Program("keep", func(p *drivertest.Process) int {
			before, _ = p.Disk.Read("generation")
			<-p.Killed
			return 0
		})
		w.cloud.start(id)
		a.nudge(id, 4, 1)
		w.want(id, muster.Running)
		if before != "1" {
			t.Errorf("the second generation read %q from its disk", before)
		}
		if got := w.host.Machines(); !slices.Equal(got, []string{"k3f9-i-1-2"}) {
			t.Errorf("the machines are %v", got)
		}
	})
}

func TestAgent_RestartsOneGenerationAfterTheOther(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		id := w.cloud.launch("stubborn") // ends only by force
		a.nudge(id, 2, 1)
		w.want(id, muster.Running)
		w.cloud.restart(id)
		began := time.Now()
		a.nudge(id, 3, 1)
		w.want(id, muster.Provisioning)
		newest, _ := w.cloud.report()
		report := newest.Instances
		if len(report) != 2 || report[0].Status != muster.Stopping || report[1].Status != muster.Provisioning {
			t.Errorf("while the old one is being stopped the report is %+v", report)
		}
		pass(10 * time.Second)
		w.want(id, muster.Running)
		if m := w.machine("k3f9-i-1-2"); m == nil || m.Started.Sub(began) != 10*time.Second {
			t.Errorf("the new one is %+v", m)
		}
	})
}

func TestAgent_LeavesALaterGenerationAlone(t *testing.T) {
	for _, desired := range []muster.DesiredStatus{muster.WantRunning, muster.WantStopped} {
		t.Run(string(desired), func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				a := w.start()
				id := w.cloud.launch()
				a.nudgeNow(w, id)
				w.cloud.restart(id)
				a.nudgeNow(w, id)
				pid := w.machine("k3f9-i-1-2").PID
				w.cloud.with(func() { // as in a registry that was restored from before the restart
					i := w.cloud.instances[id]
					i.Generation, i.Machine = 1, "k3f9-i-1-1"
					w.cloud.want(i, desired, false)
				})
				a.nudgeNow(w, id)
				pass(time.Hour)
				if m := w.machine("k3f9-i-1-2"); m.PID != pid || w.host.Launches("k3f9-i-1-1") != 1 {
					t.Errorf("it is %+v", m)
				}
			})
		})
	}
}

func TestAgent_IsNotStoppedWhileAnEarlierGenerationRuns(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		id := w.cloud.launch("stubborn")
		a.nudgeNow(w, id)
		w.cloud.restart(id)
		w.cloud.stop(id)
		a.nudgeNow(w, id)
		pass(9 * time.Second)
		w.want(id, muster.Stopping)
		pass(time.Second)
		w.want(id, muster.Stopped)
		if n := w.host.Launches("k3f9-i-1-2"); n != 0 {
			t.Errorf("the second generation was launched %d times", n)
		}
	})
}

func TestAgent_TerminatesAndConfirmsByAbsence(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		for _, command := range [][]string{nil, {"exit", "1", "x"}} {
			id := w.cloud.launch(command...)
			a.nudgeNow(w, id)
			w.cloud.terminate(id)
			a.nudgeNow(w, id)
			w.want(id, muster.Terminated)
		}
		if got := w.host.Machines(); len(got) != 0 {
			t.Errorf("there still are %v", got)
		}
	})
}

func TestAgent_StopsBeforeALaunchThatNeverWas(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		id := w.cloud.launch()
		w.cloud.stop(id)
		pass(15 * time.Second)
		w.want(id, muster.Stopped)
		if n := w.host.Launches("k3f9-i-1-1"); n != 0 {
			t.Errorf("it was launched %d times", n)
		}
	})
}

func TestAgent_KeepsWhatTheRegistryLeavesOut(t *testing.T) {
	forget := map[string]func(*cloud){
		"in the same history": func(c *cloud) { c.hide(true) },
		"in another history": func(c *cloud) {
			c.with(func() { c.epoch, c.revision, c.instances, c.known = "e2", 1, map[muster.InstanceID]*wish{}, false })
		},
	}
	for name, change := range forget {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				w.start()
				w.cloud.launch()
				pass(15 * time.Second)
				pid := w.machine("k3f9-i-1-1").PID
				change(w.cloud)
				pass(time.Hour)
				w.host.SetImages("minimal", "new") // makes a report due
				pass(15 * time.Second)
				if m := w.machine("k3f9-i-1-1"); m == nil || m.PID != pid {
					t.Fatalf("it is %+v", m)
				}
				last, _ := w.cloud.report()
				want := []muster.InstanceReportInput{{
					Machine: "k3f9-i-1-1", Epoch: "e1", ID: "i-1", Generation: 1, Status: muster.Running, PID: &pid,
					Addr: "10.213.7.3", CPULimit: 25, MemLimitMB: 128, BaseImage: "minimal",
				}}
				if diff := cmp.Diff(want, last.Instances); diff != "" || !slices.Contains(last.Images, "new") {
					t.Error("the last report: ", diff)
				}
			})
		})
	}
}

func TestAgent_AdoptsWhatAnotherHistoryWants(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		id := w.cloud.launch()
		pass(15 * time.Second)
		w.cloud.with(func() { w.cloud.epoch = "e2" }) // as after a restore
		pass(15 * time.Second)
		if seen := w.cloud.seen(id); seen.Epoch != "e2" || w.host.Launches("k3f9-i-1-1") != 1 {
			t.Errorf("it is reported as %+v", seen)
		}
		w.want(id, muster.Running)
	})
}

func TestAgent_RemovesWhatTheRegistryNames(t *testing.T) {
	for _, where := range []string{"in a report's answer", "in a registration's answer"} {
		t.Run(where, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				a := w.start()
				w.cloud.launch()
				keep := w.cloud.launch()
				pass(15 * time.Second)
				if where != "in a report's answer" {
					a.stop()
				}
				w.cloud.with(func() {
					delete(w.cloud.instances, "i-1")
					w.cloud.revision++
					w.cloud.instances[keep].since = w.cloud.revision
				})
				if where == "in a report's answer" {
					w.host.SetImages("minimal", "new") // makes a report due
				} else {
					w.start()
				}
				pass(25 * time.Second)
				if got := w.host.Machines(); !slices.Equal(got, []string{"k3f9-i-2-1"}) {
					t.Errorf("the machines are %v", got)
				}
				w.want(keep, muster.Running)
			})
		})
	}
}

// mute is a driver that tells nothing by itself.

// plain is a driver without any optional ability.

// broken is a driver whose removals fail for a while.

type broken struct {
	driver.Driver
	left atomic.Int64
}

func (d *broken) Remove(ctx context.Context, machine string) error {
	if d.left.Add(-1) >= 0 {
		return errors.New("device or resource busy")
	}
	return d.Driver.Remove(ctx, machine)
}

func TestAgent_TriesAStepThatFailedAgain(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		d := &broken{}
		d.left.Store(3)
		w.wrap = func(inner driver.Driver) driver.Driver { d.Driver = inner; return d }
		a := w.start()
		id := w.cloud.launch()
		a.nudge(id, 2, 1)
		w.cloud.terminate(id)
		a.nudge(id, 3, 1)
		w.want(id, muster.Terminating)
		pass(time.Minute)
		w.want(id, muster.Terminated)
		if left := d.left.Load(); left != -1 {
			t.Errorf("it was tried %d times, want 4", 3-left)
		}
	})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// unavailable fails one call, or all for "".

func unavailable(call string) func(string) error {
	return func(name string) error {
		if call == "" || name == call {
			return muster.Errorf(muster.Unavailable, "the registry is away")
		}
		return nil
	}
}
