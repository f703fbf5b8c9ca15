package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/muster-cloud/muster/agent/driver"
)

func (s *suite) takeOver(t *testing.T) {
	s.exited(t, s.spec("disk", 1, s.Commands.Write("/kept", "of-generation-1")))
	m := s.exited(t, s.spec("disk", 2, s.Commands.Read("/kept")))
	checkExit(t, m, 0, "exited with status 0", "of-generation-1\n")
	if m, ok := s.find(t, s.machine("disk", 1)); ok {
		t.Errorf("generation 1 is still listed: %+v", m)
	}
	if _, err := s.driver.Launch(t.Context(), s.spec("disk", 1, nil)); !errors.Is(err, driver.ErrExists) {
		t.Errorf("launch of an older generation: %v, want ErrExists", err)
	}
	s.exited(t, s.spec("disk", 3, s.Commands.Missing))
	m = s.exited(t, s.spec("disk", 4, s.Commands.Read("/kept")))
	checkExit(t, m, 0, "exited with status 0", "of-generation-1\n")
}

// relauncher is a driver that can start again what has Exited.
type relauncher interface {
	Relaunch(ctx context.Context, machine string) (driver.Status, error)
}

// relaunch asserts what holds of a driver that has the ability; agent.Relauncher has the words.
func (s *suite) relaunch(t *testing.T) {
	d, ok := s.driver.(relauncher)
	if !ok {
		return
	}
	spec := s.spec("disk", 1, s.Commands.Append("/count", "once"))
	first := s.exited(t, spec)
	given, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Relaunch(given, spec.Machine); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v, want the context's error", err)
	}
	if m, _ := s.find(t, spec.Machine); m.State != driver.Exited || m.Reason != first.Reason || !m.Ended.Equal(first.Ended) {
		t.Errorf("after it was given up it is %+v, want it as it was: %+v", m, first)
	}
	if _, err := d.Relaunch(t.Context(), spec.Machine); err != nil {
		t.Fatalf("relaunch: %v", err)
	}
	again := s.await(t, spec.Machine, func(m driver.Status) bool { return m.State == driver.Exited })
	checkExit(t, again, 0, "exited with status 0", "once\nonce\n")
	if again.Spec.Generation != 1 || !again.Ended.After(first.Ended) {
		t.Errorf("relaunched: %+v, want the same generation, ended later than %v", again, first.Ended)
	}
	running := s.spec("other", 1, s.Commands.Idle)
	s.running(t, running)
	if _, err := d.Relaunch(t.Context(), running.Machine); !errors.Is(err, driver.ErrExists) {
		t.Errorf("relaunch of what runs: %v, want ErrExists", err)
	}
	if _, err := d.Relaunch(t.Context(), s.machine("absent", 1)); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("relaunch of what is not there: %v, want ErrNotFound", err)
	}
}

func (s *suite) freshDisk(t *testing.T) {
	s.exited(t, s.spec("disk", 1, s.Commands.Write("/kept", "words")))
	if err := s.driver.Remove(t.Context(), s.machine("disk", 1)); err != nil {
		t.Fatalf("remove: %v", err)
	}
	if m := s.exited(t, s.spec("disk", 2, s.Commands.Read("/kept"))); m.ExitCode == nil || *m.ExitCode == 0 {
		t.Errorf("the file survived the removal: %+v", m)
	}
}

func (s *suite) cancelledTakeOver(t *testing.T) {
	s.exited(t, s.spec("disk", 1, s.Commands.Write("/kept", "of-generation-1")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.driver.Launch(ctx, s.spec("disk", 2, s.Commands.Idle)); !errors.Is(err, context.Canceled) {
		t.Fatalf("launch: %v, want the context's error", err)
	}
	if m, ok := s.find(t, s.machine("disk", 1)); !ok || m.State != driver.Exited {
		t.Errorf("generation 1 is %+v, want it as it was", m)
	}
	checkExit(t, s.exited(t, s.spec("disk", 2, s.Commands.Read("/kept"))), 0, "exited with status 0", "of-generation-1\n")
}

func (s *suite) adopt(t *testing.T) {
	spec := s.spec("a", 1, s.Commands.OnTerm(3, "adopted"))
	first := s.ready(t, spec)
	s.driver = s.Open(t)
	m, ok := s.find(t, spec.Machine)
	if !ok || m.State != driver.Running || m.PID != first.PID || !m.Started.Equal(first.Started) {
		t.Fatalf("the new driver lists %+v, want it as launched: %+v", m, first)
	}
	if _, err := s.driver.Launch(t.Context(), spec); !errors.Is(err, driver.ErrExists) {
		t.Errorf("launch by the new driver: %v, want ErrExists", err)
	}
	checkExit(t, s.stop(t, spec.Machine, grace), 3, "stopped", "adopted\n")
}

func (s *suite) watch(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), grace)
	defer cancel()
	names := s.driver.Watch(ctx)
	adopted := s.Open(t).Watch(ctx)
	spec := s.spec("a", 1, s.Commands.Exit(7, "words"))
	s.launch(t, spec)
	for who, names := range map[string]<-chan string{"the driver": names, "another driver": adopted} {
		for {
			name, ok := <-names
			if !ok {
				t.Fatalf("%s did not tell of the exit", who)
			}
			if m, _ := s.find(t, name); name == spec.Machine && m.State == driver.Exited {
				break
			}
		}
	}
	cancel()
	for _, names := range []<-chan string{names, adopted} {
		for range names { // ends since the channel is closed
		}
	}
}

func (s *suite) graceful(t *testing.T) {
	spec := s.spec("a", 1, s.Commands.OnTerm(5, "was-asked-to-stop"))
	s.ready(t, spec)
	checkExit(t, s.stop(t, spec.Machine, grace), 5, "stopped", "was-asked-to-stop\n")
}

func (s *suite) forced(t *testing.T) {
	spec := s.spec("a", 1, s.Commands.Stubborn)
	s.ready(t, spec)
	begin := time.Now()
	m := s.stop(t, spec.Machine, 300*time.Millisecond)
	if m.Reason != "stopped" || m.ExitCode != nil {
		t.Errorf("forced: %+v, want it stopped without an exit code", m)
	}
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("forced after %v, before its grace was over", took)
	}
}

func (s *suite) stopEnded(t *testing.T) {
	spec := s.spec("a", 1, s.Commands.Exit(7, "words"))
	s.exited(t, spec)
	checkExit(t, s.stop(t, spec.Machine, grace), 7, "exited with status 7", "words\n")
	if _, err := s.driver.Stop(t.Context(), "absent", grace); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("stop of what is not there: %v, want ErrNotFound", err)
	}
}

func (s *suite) removeAbsent(t *testing.T) {
	for _, name := range []string{"absent", "", "../../etc"} {
		if err := s.driver.Remove(t.Context(), name); err != nil {
			t.Errorf("remove %q: %v, want no error", name, err)
		}
	}
}

func (s *suite) removeRunning(t *testing.T) {
	spec := s.spec("a", 1, s.Commands.Stubborn)
	s.ready(t, spec)
	if err := s.driver.Remove(t.Context(), spec.Machine); err != nil {
		t.Fatalf("remove: %v", err)
	}
	if m, ok := s.find(t, spec.Machine); ok {
		t.Errorf("it is listed after it was removed: %+v", m)
	}
	s.running(t, s.spec("a", 1, s.Commands.Idle))
}
