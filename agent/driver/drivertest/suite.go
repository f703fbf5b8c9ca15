package drivertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster/agent/driver"
)

// Harness is what the suite needs of a driver under test. Each case gets its own.
type Harness struct {
	// Open returns a driver on this harness's state, each time a new one, as when the agent restarts.
	Open func(t *testing.T) driver.Driver
	// Spec completes a specification that has its names and its command: image, limits, address.
	Spec func(spec driver.Spec) driver.Spec
	// Prefix begins the names of the machines and disks, which are unique on a host; may be empty.
	Prefix string
	// Commands are the payloads.
	Commands Commands
	// Console returns what a machine has printed so far.
	Console func(machine string) string
	// HostPath is a directory of the host's that machines are allowed; empty: none is. Forbidden is one that is not.
	HostPath, Forbidden string
	// Leftovers returns what is left of machines on the host, one line a thing; nil: only List is asked.
	Leftovers func() []string
}

// Run runs the conformance suite. The function makes a fresh harness, and cleans
// up after it with t.Cleanup.
func Run(t *testing.T, harness func(t *testing.T) Harness) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			s := &suite{Harness: harness(t)}
			s.driver = s.Open(t)
			c.check(s, t)
			s.clean(t)
		})
	}
}

type suiteCase struct {
	name  string
	check func(*suite, *testing.T)
}

func cases() []suiteCase {
	return []suiteCase{
		{"launch, list, stop, remove", (*suite).lifecycle},
		{"environment, command and hostname", (*suite).environment},
		{"without a command it idles", (*suite).idles},
		{"exit statuses with output", (*suite).exits},
		{"an image that is missing", (*suite).missingImage},
		{"a command that is missing", (*suite).missingCommand},
		{"a specification that is wrong", (*suite).wrongSpec},
		{"logs", (*suite).logs},
		{"stats", (*suite).stats},
		{"processes", (*suite).processes},
		{"a process and its machine", (*suite).machineOfProcesses},
		{"exec", (*suite).exec},
		{"launched twice", (*suite).duplicate},
		{"a generation takes over the disk", (*suite).takeOver},
		{"launched again on its own disk", (*suite).relaunch},
		{"a disk is fresh after remove", (*suite).freshDisk},
		{"a volume outlives its machines", (*suite).volumeOutlives},
		{"a volume that two machines share", (*suite).volumeShared},
		{"a volume that is read-only", (*suite).volumeReadOnly},
		{"a volume is removed once nobody uses it", (*suite).volumeRemoved},
		{"host paths", (*suite).hostPaths},
		{"adopted by a new driver", (*suite).adopt},
		{"watch tells of an exit", (*suite).watch},
		{"a graceful stop", (*suite).graceful},
		{"a stop that has to be forced", (*suite).forced},
		{"stop of what has ended, or is not", (*suite).stopEnded},
		{"remove of what is not there", (*suite).removeAbsent},
		{"remove while it runs", (*suite).removeRunning},
		{"launches at the same time", (*suite).concurrent},
		{"the same machine at the same time", (*suite).racing},
		{"a launch that its caller gives up", (*suite).cancelled},
		{"a new generation that is given up", (*suite).cancelledTakeOver},
	}
}

type suite struct {
	Harness
	driver driver.Driver
}

const grace = 20 * time.Second

// spec returns generation n of a disk with a command; nil idles.
func (s *suite) spec(disk string, n int64, command []string) driver.Spec {
	return s.Spec(driver.Spec{
		Machine: s.machine(disk, n), Disk: s.Prefix + disk, Instance: "i-1", Generation: n,
		Hostname: disk, Command: command,
	})
}

func (s *suite) machine(disk string, n int64) string {
	return fmt.Sprintf("%s%s-%d", s.Prefix, disk, n)
}

func (s *suite) launch(t *testing.T, spec driver.Spec) driver.Status {
	t.Helper()
	status, err := s.driver.Launch(t.Context(), spec)
	if err != nil {
		t.Fatalf("launch %s: %v", spec.Machine, err)
	}
	return status
}

// running launches what has to be running afterwards.
func (s *suite) running(t *testing.T, spec driver.Spec) driver.Status {
	t.Helper()
	status := s.launch(t, spec)
	if status.State != driver.Running || status.PID <= 0 || status.Started.IsZero() {
		t.Fatalf("launched: %+v, want it to run with a PID and a start", status)
	}
	return status
}

// exited launches what ends by itself and returns how.
func (s *suite) exited(t *testing.T, spec driver.Spec) driver.Status {
	t.Helper()
	s.launch(t, spec)
	return s.await(t, spec.Machine, func(m driver.Status) bool { return m.State == driver.Exited })
}

func (s *suite) find(t *testing.T, name string) (driver.Status, bool) {
	t.Helper()
	all, err := s.driver.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	i := slices.IndexFunc(all, func(m driver.Status) bool { return m.Spec.Machine == name })
	if i < 0 {
		return driver.Status{}, false
	}
	return all[i], true
}

// await polls List, since an exit is a real process's doing.
func (s *suite) await(t *testing.T, name string, ok func(driver.Status) bool) driver.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), grace)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		m, found := s.find(t, name)
		if found && ok(m) {
			return m
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s does not come to the state that is waited for; it is there: %v, %+v", name, found, m)
		case <-tick.C:
		}
	}
}

// ready launches a payload that prints "ready" and waits until it has.
func (s *suite) ready(t *testing.T, spec driver.Spec) driver.Status {
	t.Helper()
	status := s.running(t, spec)
	s.await(t, spec.Machine, func(driver.Status) bool {
		return strings.Contains(s.Console(spec.Machine), "ready")
	})
	return status
}

// stop stops and asserts what holds for each machine that has ended.
func (s *suite) stop(t *testing.T, name string, grace time.Duration) driver.Status {
	t.Helper()
	status, err := s.driver.Stop(t.Context(), name, grace)
	if err != nil {
		t.Fatalf("stop %s: %v", name, err)
	}
	if status.State != driver.Exited || status.PID != 0 || status.Ended.IsZero() {
		t.Errorf("stopped: %+v, want it Exited, without a PID, with an end", status)
	}
	return status
}

// clean removes everything and asserts that nothing is left.
func (s *suite) clean(t *testing.T) {
	t.Helper()
	all, err := s.driver.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	for _, m := range all {
		if err := s.driver.Remove(t.Context(), m.Spec.Machine); err != nil {
			t.Errorf("remove %s: %v", m.Spec.Machine, err)
		}
	}
	if all, err = s.driver.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("listed after everything was removed: %+v, %v", all, err)
	}
	s.removeVolumes(t)
	if s.Leftovers == nil {
		return
	}
	if left := s.Leftovers(); len(left) > 0 {
		t.Errorf("left after everything was removed:\n%s", strings.Join(left, "\n"))
	}
}

func checkExit(t *testing.T, m driver.Status, code int, reason, output string) {
	t.Helper()
	if m.ExitCode == nil {
		t.Errorf("no exit code, want %d", code)
	} else if *m.ExitCode != code {
		t.Errorf("exit code %d, want %d", *m.ExitCode, code)
	}
	if m.Reason != reason {
		t.Errorf("reason %q, want %q", m.Reason, reason)
	}
	if !strings.Contains(m.Output, output) {
		t.Errorf("output %q, want it to contain %q", m.Output, output)
	}
}
