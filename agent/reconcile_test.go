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

// again is a driver that can start a machine again.
type again struct{ driver.Driver }

func (d again) Relaunch(ctx context.Context, machine string) (driver.Status, error) {
	all, err := d.List(ctx)
	if err != nil {
		return driver.Status{}, err
	}
	i := slices.IndexFunc(all, func(m driver.Status) bool { return m.Spec.Machine == machine })
	if err := d.Remove(ctx, machine); err != nil {
		return driver.Status{}, err
	}
	return d.Launch(ctx, all[i].Spec)
}

func TestAgent_StartsAgainAfterTheHostWasRestarted(t *testing.T) {
	for _, able := range []bool{true, false} {
		t.Run(fmt.Sprint("a driver that can: ", able), func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				if able {
					w.wrap = func(d driver.Driver) driver.Driver { return again{d} }
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
