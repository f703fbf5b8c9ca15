package drivertest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// processes asserts what holds of a driver that has the ability.
func (s *suite) processes(t *testing.T) {
	d, ok := s.driver.(driver.Processes)
	if !ok {
		return
	}
	machine := s.running(t, s.spec("a", 1, s.Commands.Idle)).Spec.Machine
	ref := driver.ProcessRef{Machine: machine, Name: "svc-1"}
	start := func(command []string) driver.ProcessStatus {
		t.Helper()
		p, err := d.StartProcess(t.Context(), driver.ProcessSpec{ProcessRef: ref, Command: command, Note: "remember"})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start(s.Commands.OnTerm(3, "the last words"))
	if p.State != driver.Running || p.PID <= 0 || p.Started.IsZero() || p.Spec.Note != "remember" {
		t.Errorf("started: %+v", p)
	}
	if _, err := d.StartProcess(t.Context(), driver.ProcessSpec{ProcessRef: ref, Command: s.Commands.Idle}); !errors.Is(err, driver.ErrExists) {
		t.Errorf("started twice: %v, want ErrExists", err)
	}
	s.awaitOutput(t, ref, "ready\n", "ready\n")
	p, err := d.StopProcess(t.Context(), ref, driver.Stop{Grace: grace})
	checkEnd(t, p, driver.Stopped, "stopped")
	if err != nil || p.ExitCode == nil || *p.ExitCode != 3 || !strings.HasSuffix(p.Output, "the last words\n") {
		t.Errorf("stopped: %+v, %v", p, err)
	}
	d, _ = s.Open(t).(driver.Processes)
	start(s.Commands.Exit(7, "seven"))
	p = s.awaitProcess(t, ref, func(p driver.ProcessStatus) bool { return p.State == driver.Exited })
	checkEnd(t, p, driver.Itself, "exited with status 7")
	if p.ExitCode == nil || *p.ExitCode != 7 || p.Spec.Note != "remember" {
		t.Errorf("ended: %+v", p)
	}
	s.awaitOutput(t, ref, "ready\n", "the last words\nseven\n") // its log went on
	start(s.Commands.Missing)
	p = s.awaitProcess(t, ref, func(p driver.ProcessStatus) bool { return p.State == driver.Exited })
	if p.ExitCode != nil || !strings.HasPrefix(p.Reason, "could not start: ") {
		t.Errorf("a program that is missing: %+v", p)
	}
	start(s.Commands.Stubborn)
	p, err = d.StopProcess(t.Context(), ref, driver.Stop{Grace: time.Millisecond})
	checkEnd(t, p, driver.Stopped, "stopped")
	if err != nil {
		t.Error(err)
	}
	start(s.Commands.Idle)
	if err := errors.Join(d.RemoveProcess(t.Context(), ref), d.RemoveProcess(t.Context(), ref)); err != nil {
		t.Error(err)
	}
	if all, err := d.ListProcesses(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after it was removed: %+v, %v", all, err)
	}
}

// machineOfProcesses asserts what its machine means for a process.
func (s *suite) machineOfProcesses(t *testing.T) {
	d, ok := s.driver.(driver.Processes)
	if !ok {
		return
	}
	spec := s.spec("a", 1, s.Commands.Idle)
	process := driver.ProcessSpec{ProcessRef: driver.ProcessRef{Machine: spec.Machine, Name: "svc-1"}, Command: s.Commands.Stubborn}
	if _, err := d.StartProcess(t.Context(), process); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("in a machine that is not there: %v, want ErrNotFound", err)
	}
	s.running(t, spec)
	if _, err := d.StartProcess(t.Context(), process); err != nil {
		t.Fatal(err)
	}
	s.stop(t, spec.Machine, grace)
	checkEnd(t, s.awaitProcess(t, process.ProcessRef, func(p driver.ProcessStatus) bool { return p.State == driver.Exited }), driver.Machine, "ended with its instance")
	if _, err := d.StartProcess(t.Context(), process); muster.CodeOf(err) != muster.Conflict {
		t.Errorf("in a machine that does not run: %v, want CONFLICT", err)
	}
	if err := s.driver.Remove(t.Context(), spec.Machine); err != nil {
		t.Fatal(err)
	}
	if all, err := d.ListProcesses(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after its machine was removed: %+v, %v", all, err)
	}
}

// exec asserts what holds of a driver that has the ability.
func (s *suite) exec(t *testing.T) {
	d, ok := s.driver.(driver.Exec)
	if !ok {
		return
	}
	machine := s.running(t, s.spec("a", 1, s.Commands.Idle)).Spec.Machine
	var out bytes.Buffer
	run := func(ctx context.Context, command []string) (driver.Exit, error) {
		out.Reset()
		return d.Exec(ctx, driver.ExecSpec{Machine: machine, Command: command}, driver.Streams{Stdout: &out})
	}
	if exit, err := run(t.Context(), s.Commands.Exit(7, "seven")); err != nil || exit != (driver.Exit{Code: 7}) || out.String() != "seven\n" {
		t.Errorf("%+v with %q, %v", exit, out.String(), err)
	}
	if exit, err := run(t.Context(), s.Commands.Missing); err != nil || exit.Failure == "" {
		t.Errorf("a program that is missing: %+v, %v", exit, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if exit, err := run(ctx, s.Commands.Stubborn); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("given up: %+v, %v", exit, err)
	}
	if exit, err := run(t.Context(), nil); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("without a command: %+v, %v", exit, err)
	}
}

func checkEnd(t *testing.T, p driver.ProcessStatus, cause driver.Cause, reason string) {
	t.Helper()
	if p.State != driver.Exited || p.PID != 0 || p.Ended.IsZero() || p.Cause != cause || p.Reason != reason {
		t.Errorf("ended: %+v, want it %q by %q", p, reason, cause)
	}
}

// awaitProcess polls ListProcesses, since an end is a real process's doing.
func (s *suite) awaitProcess(t *testing.T, ref driver.ProcessRef, ok func(driver.ProcessStatus) bool) (found driver.ProcessStatus) {
	t.Helper()
	s.eventually(t, func() bool {
		all, err := s.driver.(driver.Processes).ListProcesses(t.Context()) //nolint:forcetypeassert // the caller has asked
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if p.Spec.ProcessRef == ref && ok(p) {
				found = p
				return true
			}
		}
		return false
	})
	return found
}

// awaitOutput waits until a process's log begins and ends so; a shell may say something between.
func (s *suite) awaitOutput(t *testing.T, ref driver.ProcessRef, first, last string) {
	t.Helper()
	d, ok := s.driver.(driver.ProcessLogs)
	if !ok {
		return
	}
	s.eventually(t, func() bool {
		part, err := d.ReadProcessLog(t.Context(), ref, driver.LogRead{Limit: 1 << 20})
		return err == nil && strings.HasPrefix(string(part.Data), first) && strings.HasSuffix(string(part.Data), last)
	})
}

func (s *suite) eventually(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), grace)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatal("what is waited for does not come")
		case <-tick.C:
		}
	}
}
