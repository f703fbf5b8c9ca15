package proc_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
	"github.com/muster-cloud/muster/agent/proc"
)

// scene is a host with one machine, and a Supervisor at work.
type scene struct {
	host    *drivertest.Host
	fake    *drivertest.Fake
	changes atomic.Int64
}

var ref = driver.ProcessRef{Machine: "m-1", Name: "svc-1"}

// play runs a test in a bubble of time.
func play(t *testing.T, fn func(t *testing.T, s *scene)) {
	synctest.Test(t, func(t *testing.T) {
		s := &scene{host: drivertest.NewHost()}
		s.fake = drivertest.NewFake(s.host)
		defer s.host.Close()
		s.launch(t)
		fn(t, s)
	})
}

func (s *scene) launch(t *testing.T) {
	t.Helper()
	spec := driver.Spec{Machine: ref.Machine, Disk: ref.Machine, Instance: "i-1", Generation: 1, Hostname: "a", Image: "minimal", CPUPercent: 25, MemoryMB: 128}
	if _, err := s.fake.Launch(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

// supervise runs a new Supervisor for as long as fn takes.
func (s *scene) supervise(t *testing.T, fn func(p *proc.Supervisor)) {
	t.Helper()
	p := proc.New(proc.Options{Driver: s.fake, Changed: func(driver.ProcessRef) { s.changes.Add(1) }})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	fn(p)
	cancel()
	group.Wait()
}

func spec(generation int64, command ...string) proc.Spec {
	return proc.Spec{ProcessSpec: driver.ProcessSpec{ProcessRef: ref, Command: command}, Generation: generation}
}

// check waits until nothing moves and compares.
func check(t *testing.T, p *proc.Supervisor, state proc.State, restarts int, reason string) proc.Status {
	t.Helper()
	synctest.Wait()
	now, ok := p.Status(ref)
	if !ok || now.State != state || now.Restarts != restarts || now.Reason != reason {
		t.Errorf("it is %+v (kept: %v), want %s after %d restarts, %q", now, ok, state, restarts, reason)
	}
	return now
}

func TestSupervisor_RestartsWithBackoffAndGivesUp(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.supervise(t, func(p *proc.Supervisor) {
			want := spec(1, "exit", "7", "broken")
			want.Restart = muster.RestartPolicy{Attempts: 3}
			p.Keep(want)
			check(t, p, proc.Waiting, 0, "exited with status 7: broken")
			for i, pause := range []time.Duration{time.Second, 2 * time.Second} {
				time.Sleep(pause - time.Millisecond)
				check(t, p, proc.Waiting, i, "exited with status 7: broken")
				time.Sleep(time.Millisecond)
				check(t, p, proc.Waiting, i+1, "exited with status 7: broken")
			}
			time.Sleep(4 * time.Second)
			now := check(t, p, proc.Failed, 3, "given up after 3 restarts in 10m0s; the last time it exited with status 7: broken")
			if now.ExitCode == nil || *now.ExitCode != 7 || s.host.Starts(ref) != 4 {
				t.Errorf("after %d starts it is %+v", s.host.Starts(ref), now)
			}
			time.Sleep(time.Hour)
			p.Keep(want) // the same generation: nothing changes
			p.Look(ref)
			synctest.Wait()
			if s.host.Starts(ref) != 4 {
				t.Errorf("it was started again: %d times", s.host.Starts(ref))
			}
			want.Generation = 2 // somebody asks for it
			p.Keep(want)
			check(t, p, proc.Waiting, 0, "exited with status 7: broken")
		})
	})
}

func TestSupervisor_StartsAgainWhatDies(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.supervise(t, func(p *proc.Supervisor) {
			p.Keep(spec(1, "idle"))
			first := check(t, p, proc.Running, 0, "")
			if err := s.host.ExitProcess(ref, 1); err != nil {
				t.Fatal(err)
			}
			check(t, p, proc.Waiting, 0, "exited with status 1: ready")
			time.Sleep(time.Second)
			if second := check(t, p, proc.Running, 1, ""); second.PID == first.PID || second.PID == 0 {
				t.Errorf("it has the PID %d, before %d", second.PID, first.PID)
			}
			changes := s.changes.Load()
			time.Sleep(24 * time.Hour)
			if err := s.host.ExitProcess(ref, 0); err != nil {
				t.Fatal(err)
			}
			check(t, p, proc.Stopped, 1, "exited with status 0: ready")
			if n := s.changes.Load() - changes; n != 1 {
				t.Errorf("a day and an end made %d changes, want 1", n)
			}
		})
	})
}

func TestSupervisor_GoesOnWhereAnotherWas(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		want := spec(1, "exit", "7", "broken")
		want.Restart = muster.RestartPolicy{Attempts: 3}
		s.supervise(t, func(p *proc.Supervisor) {
			p.Keep(want)
			time.Sleep(1500 * time.Millisecond)
			check(t, p, proc.Waiting, 1, "exited with status 7: broken")
		})
		time.Sleep(500 * time.Millisecond)
		s.supervise(t, func(p *proc.Supervisor) {
			p.Keep(want)
			check(t, p, proc.Waiting, 1, "exited with status 7: broken")
			time.Sleep(time.Second)
			check(t, p, proc.Waiting, 2, "exited with status 7: broken")
			time.Sleep(4 * time.Second)
			check(t, p, proc.Failed, 3, "given up after 3 restarts in 10m0s; the last time it exited with status 7: broken")
		})
		s.supervise(t, func(p *proc.Supervisor) {
			p.Keep(want)
			check(t, p, proc.Failed, 3, "given up after 3 restarts in 10m0s; the last time it exited with status 7: broken")
			p.Keep(spec(2, "idle"))
			check(t, p, proc.Running, 0, "")
		})
		s.supervise(t, func(p *proc.Supervisor) { // what runs is adopted
			p.Keep(spec(2, "idle"))
			check(t, p, proc.Running, 0, "")
		})
		if n := s.host.Starts(ref); n != 5 {
			t.Errorf("%d starts, want 5", n)
		}
	})
}

func TestSupervisor_NewGenerationReplacesTheOld(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.supervise(t, func(p *proc.Supervisor) {
			p.Keep(spec(1, "stubborn"))
			check(t, p, proc.Running, 0, "")
			p.Keep(spec(2, "idle"))
			check(t, p, proc.Stopping, 0, "")
			time.Sleep(10 * time.Second)
			if now := check(t, p, proc.Running, 0, ""); now.Generation != 2 {
				t.Errorf("it is %+v", now)
			}
			p.Keep(spec(1, "stubborn")) // late
			if now := check(t, p, proc.Running, 0, ""); now.Generation != 2 || s.host.Starts(ref) != 2 {
				t.Errorf("it is %+v after %d starts", now, s.host.Starts(ref))
			}
		})
	})
}

func TestSupervisor_HaltsAndDrops(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.supervise(t, func(p *proc.Supervisor) {
			p.Keep(spec(1, "on-term", "3", "bye"))
			check(t, p, proc.Running, 0, "")
			p.Halt(ref, driver.Stop{Grace: time.Minute})
			if now := check(t, p, proc.Stopped, 0, "stopped"); now.ExitCode == nil || *now.ExitCode != 3 {
				t.Errorf("it is %+v", now)
			}
			time.Sleep(time.Hour)
			p.Keep(spec(1, "on-term", "3", "bye")) // wanted again: it has not failed
			check(t, p, proc.Running, 0, "")
			p.Drop(ref)
			synctest.Wait()
			if _, kept := p.Status(ref); kept || len(s.host.Processes()) != 0 || len(p.List()) != 0 {
				t.Errorf("left: %v, %v", p.List(), s.host.Processes())
			}
			p.Keep(spec(1, "idle"))
			check(t, p, proc.Running, 0, "")
			p.Forget(ref)
			synctest.Wait()
			if _, kept := p.Status(ref); kept || len(s.host.Processes()) != 1 {
				t.Errorf("forgotten: %v, %v", p.List(), s.host.Processes())
			}
			p.Halt(driver.ProcessRef{Machine: "m-1", Name: "never"}, driver.Stop{})
			p.Forget(driver.ProcessRef{Machine: "m-1", Name: "never-too"})
			synctest.Wait()
			if all := p.List(); len(all) != 1 || all[0].State != proc.Stopped {
				t.Errorf("what never was is %+v", all)
			}
		})
	})
}

func TestSupervisor_FollowsItsInstance(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.supervise(t, func(p *proc.Supervisor) {
			want := spec(1, "idle")
			want.Restart = muster.RestartPolicy{When: muster.RestartNever}
			p.Keep(want)
			check(t, p, proc.Running, 0, "")
			if _, err := s.fake.Stop(t.Context(), ref.Machine, time.Minute); err != nil {
				t.Fatal(err)
			}
			check(t, p, proc.Waiting, 0, "ended with its instance")
			time.Sleep(time.Second)
			check(t, p, proc.Starting, 0, "its instance does not run")
			changes := s.changes.Load()
			time.Sleep(time.Hour)
			if n := s.changes.Load() - changes; n != 0 {
				t.Errorf("an hour of waiting made %d changes", n)
			}
			if _, err := s.fake.Relaunch(t.Context(), ref.Machine); err != nil {
				t.Fatal(err)
			}
			p.Look(ref)
			check(t, p, proc.Running, 0, "")
		})
	})
}

// broken is a driver that can start nothing for a while.
type broken struct {
	*drivertest.Fake
	works atomic.Bool
}

func (b *broken) StartProcess(ctx context.Context, spec driver.ProcessSpec) (driver.ProcessStatus, error) {
	if !b.works.Load() {
		return driver.ProcessStatus{}, errors.New("no space left on device")
	}
	return b.Fake.StartProcess(ctx, spec)
}

func TestSupervisor_TriesAgain(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		b := &broken{Fake: s.fake}
		p := proc.New(proc.Options{Driver: b})
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { _ = p.Run(ctx) })
		p.Keep(spec(1, "idle"))
		if now := check(t, p, proc.Starting, 0, "no space left on device"); now.PID != 0 {
			t.Errorf("it is %+v", now)
		}
		b.works.Store(true)
		time.Sleep(5 * time.Second)
		check(t, p, proc.Running, 0, "")
		cancel()
		group.Wait()
	})
}

func TestSupervisor_ManyAtOnce(t *testing.T) {
	play(t, func(t *testing.T, s *scene) {
		s.supervise(t, func(p *proc.Supervisor) {
			for _, name := range strings.Fields("a b c d e f g h") {
				want := spec(1, "idle")
				want.Name = name
				p.Keep(want)
			}
			synctest.Wait()
			for _, now := range p.List() {
				if now.State != proc.Running {
					t.Errorf("%+v", now)
				}
			}
			if len(p.List()) != 8 || len(s.host.Processes()) != 8 {
				t.Errorf("%d are kept, %d there are", len(p.List()), len(s.host.Processes()))
			}
		})
	})
}
