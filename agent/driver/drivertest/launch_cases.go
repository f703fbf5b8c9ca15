package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

func (s *suite) lifecycle(t *testing.T) {
	spec := s.spec("a", 1, s.Commands.Idle)
	launched := s.ready(t, spec)
	listed, ok := s.find(t, spec.Machine)
	if !ok || listed.State != driver.Running || listed.PID != launched.PID {
		t.Errorf("listed %+v, want it as launched: %+v", listed, launched)
	}
	if listed.Spec.Instance != spec.Instance || listed.Spec.Generation != 1 || listed.Spec.MemoryMB != spec.MemoryMB {
		t.Errorf("listed with the specification %+v, want %+v", listed.Spec, spec)
	}
	stopped := s.stop(t, spec.Machine, grace)
	checkExit(t, stopped, 0, "stopped", "")
	if listed, ok = s.find(t, spec.Machine); !ok || listed.State != driver.Exited || listed.Reason != "stopped" {
		t.Errorf("listed after the stop: %+v", listed)
	}
	if err := s.driver.Remove(t.Context(), spec.Machine); err != nil {
		t.Fatalf("remove: %v", err)
	}
	if _, ok = s.find(t, spec.Machine); ok {
		t.Error("it is listed after it was removed")
	}
}

func (s *suite) environment(t *testing.T) {
	for i, env := range []map[string]string{
		nil,
		{"GREETING": "hello  world", "QUOTED": `a "b" 'c' "it's" \d \" $HOME %h ; # = \`, "EMPTY": "", "_u1": "ünïcode", "TAB": "a\tb ", "CONTROL": "\x1b[1m\x7f\x01"},
		{"LINES": "one\ntwo", "QUOTED": `'"\`},
	} {
		spec := s.spec(fmt.Sprintf("env%d", i), 1, s.Commands.Describe)
		spec.Hostname, spec.Env = "web-7", env
		m := s.exited(t, spec)
		checkExit(t, m, 0, "exited with status 0", "HOSTNAME=web-7\n")
		for name, value := range spec.Env {
			if line := name + "=" + value + "\n"; !strings.Contains(m.Output, line) {
				t.Errorf("output lacks %q:\n%s", line, m.Output)
			}
		}
	}
}

func (s *suite) idles(t *testing.T) {
	spec := s.spec("idle", 1, nil)
	s.running(t, spec)
	if m := s.stop(t, spec.Machine, grace); m.Reason != "stopped" {
		t.Errorf("stopped: %+v", m)
	}
}

func (s *suite) exits(t *testing.T) {
	for _, code := range []int{0, 7, 137, 255} {
		spec := s.spec(fmt.Sprintf("exit%d", code), 1, s.Commands.Exit(code, "words-before-the-end"))
		m := s.exited(t, spec)
		checkExit(t, m, code, fmt.Sprintf("exited with status %d", code), "words-before-the-end\n")
		if m.PID != 0 || m.OOM || m.Started.IsZero() || m.Ended.Before(m.Started) {
			t.Errorf("ended: %+v", m)
		}
	}
}

func (s *suite) missingImage(t *testing.T) {
	spec := s.spec("a", 1, nil)
	for image, digest := range map[string]string{"nosuch": "", spec.Image: "sha256:" + strings.Repeat("0", 64)} { // the second is the server's, whatever the host's own is
		spec.Image, spec.ImageDigest = image, digest
		if _, err := s.driver.Launch(t.Context(), spec); !errors.Is(err, driver.ErrNoImage) {
			t.Errorf("launch of %s of the digest %q: %v, want ErrNoImage", image, digest, err)
		}
	}
	if m, ok := s.find(t, spec.Machine); ok {
		t.Errorf("it is listed: %+v", m)
	}
}

func (s *suite) missingCommand(t *testing.T) {
	spec := s.spec("a", 1, s.Commands.Missing)
	m := s.launch(t, spec)
	if m.State != driver.Exited || m.ExitCode != nil ||
		!strings.HasPrefix(m.Reason, "could not start: ") || !strings.Contains(m.Reason, s.Commands.Missing[0]) {
		t.Errorf("launched: %+v, want it Exited, with a reason that names the command", m)
	}
	if listed, ok := s.find(t, spec.Machine); !ok || listed.Reason != m.Reason {
		t.Errorf("listed %+v, want it as launched: %+v", listed, m)
	}
}

func (s *suite) wrongSpec(t *testing.T) {
	for name, change := range map[string]func(*driver.Spec){
		"machine":    func(spec *driver.Spec) { spec.Machine = "../x" },
		"disk":       func(spec *driver.Spec) { spec.Disk = "" },
		"hostname":   func(spec *driver.Spec) { spec.Hostname = "a\nb" },
		"image":      func(spec *driver.Spec) { spec.Image = "../minimal" },
		"cpuPercent": func(spec *driver.Spec) { spec.CPUPercent = 0 },
		"memoryMb":   func(spec *driver.Spec) { spec.MemoryMB = -1 },
		"command":    func(spec *driver.Spec) { spec.Command = []string{""} },
		"env":        func(spec *driver.Spec) { spec.Env = map[string]string{"A=B": "c"} },
		"addr":       func(spec *driver.Spec) { spec.Addr = "10.0.0.300/24" },
		"volumes[0].path": func(spec *driver.Spec) {
			spec.Volumes = []muster.VolumeMount{{Name: "data", Path: "/proc/data"}}
		},
		"gateway": func(spec *driver.Spec) { spec.Addr, spec.Gateway = "10.0.0.2/24", "10.0.1.1" },
	} {
		spec := s.spec("a", 1, nil)
		change(&spec)
		_, err := s.driver.Launch(t.Context(), spec)
		if e, ok := errors.AsType[*muster.Error](err); !ok || e.Code != muster.Invalid || e.Field != name {
			t.Errorf("%s: %v, want INVALID with that field", name, err)
		}
	}
}

func (s *suite) duplicate(t *testing.T) {
	spec := s.spec("a", 1, s.Commands.Idle)
	first := s.running(t, spec)
	again, next := spec, s.spec("a", 2, s.Commands.Idle)
	for name, spec := range map[string]driver.Spec{"the same machine": again, "its disk": next} {
		if _, err := s.driver.Launch(t.Context(), spec); !errors.Is(err, driver.ErrExists) {
			t.Errorf("launch of %s: %v, want ErrExists", name, err)
		}
	}
	if m, _ := s.find(t, spec.Machine); m.PID != first.PID {
		t.Errorf("the first one runs as %d, it was %d", m.PID, first.PID)
	}
}

func (s *suite) concurrent(t *testing.T) {
	const n = 12
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			s.running(t, s.spec(fmt.Sprintf("many%d", i), 1, s.Commands.Idle))
		})
	}
	group.Wait()
	pids := map[int]bool{}
	for i := range n {
		m, _ := s.find(t, s.machine(fmt.Sprintf("many%d", i), 1))
		pids[m.PID] = m.State == driver.Running
	}
	if len(pids) != n {
		t.Errorf("%d machines run, want %d: %v", len(pids), n, pids)
	}
	for i := range n {
		group.Go(func() {
			if err := s.driver.Remove(t.Context(), s.machine(fmt.Sprintf("many%d", i), 1)); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
	}
	group.Wait()
}

func (s *suite) racing(t *testing.T) {
	spec := s.spec("a", 1, s.Commands.Idle)
	errs := make([]error, 4)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { _, errs[i] = s.driver.Launch(t.Context(), spec) })
	}
	group.Wait()
	launched := 0
	for _, err := range errs {
		if err == nil {
			launched++
		} else if !errors.Is(err, driver.ErrExists) {
			t.Errorf("launch: %v, want ErrExists", err)
		}
	}
	if launched != 1 {
		t.Errorf("%d of %d launches succeeded, want 1", launched, len(errs))
	}
}

// cancelled gives launches up at several moments: each has either happened or left nothing.
func (s *suite) cancelled(t *testing.T) {
	for i, after := range []time.Duration{0, 5, 20, 50, 100, 150} {
		spec := s.spec(fmt.Sprintf("gone%d", i), 1, s.Commands.Idle)
		ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
		_, err := s.driver.Launch(ctx, spec)
		cancel()
		m, listed := s.find(t, spec.Machine)
		switch {
		case err == nil && m.State != driver.Running:
			t.Errorf("launched within %d ms, yet listed as %+v", after, m)
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("given up after %d ms: %v, want the context's error", after, err)
		case err != nil && listed:
			t.Errorf("given up after %d ms, yet listed as %+v", after, m)
		}
		if err := s.driver.Remove(t.Context(), spec.Machine); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
}
