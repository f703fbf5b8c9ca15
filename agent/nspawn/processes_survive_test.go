package nspawn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster/agent/driver"
)

// attendantOf returns the PID of a process's supervisor.
func attendantOf(t *testing.T, h *host, ref driver.ProcessRef) int {
	t.Helper()
	var state struct{ Supervisor struct{ PID int } }
	text, err := os.ReadFile(filepath.Join(h.state, "processes", "machines", ref.Machine+"."+ref.Name, "state.json"))
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		t.Fatal(err)
	}
	return state.Supervisor.PID
}

// counting prints a number a moment.
const counting = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.02; done"

// counted waits until a process has printed a number.
func counted(t *testing.T, h *host, ref driver.ProcessRef, n int) {
	t.Helper()
	d := h.open()
	awaitProcess(t, d, ref, func(driver.ProcessStatus) bool {
		return strings.Contains(logged(t, d, ref), fmt.Sprintf("\n%d\n", n))
	})
}

// TestProcess_SurvivesTheAgent has another process start one and be killed.
func TestProcess_SurvivesTheAgent(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	spec := processSpec(m.Spec.Machine, counting)
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.CommandContext(t.Context(), os.Args[0], "start-process", h.state, h.prefix+"group", string(text))
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	var started driver.ProcessStatus
	if err := json.NewDecoder(out).Decode(&started); err != nil {
		t.Fatal(err)
	}
	counted(t, h, spec.ProcessRef, 3)
	kill(t, agent.Process.Pid)
	if err := agent.Wait(); err == nil {
		t.Error("the agent ended by itself")
	}
	p := awaitProcess(t, d, spec.ProcessRef, func(driver.ProcessStatus) bool { return true })
	if p.State != driver.Running || p.PID != started.PID || !p.Started.Equal(started.Started) {
		t.Errorf("it is %+v, want it as started: %+v", p, started)
	}
	counted(t, h, spec.ProcessRef, 40)
	p, err = d.StopProcess(t.Context(), spec.ProcessRef, driver.Stop{Grace: grace})
	if err != nil || p.Reason != "stopped" {
		t.Errorf("stopped: %+v, %v", p, err)
	}
	remove(t, d)
}

func TestProcess_SurvivesItsSupervisor(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	spec := processSpec(m.Spec.Machine, "trap 'echo was told; exit 4' TERM; "+counting)
	started := startProcess(t, d, spec)
	for i := range 2 {
		old := attendantOf(t, h, spec.ProcessRef)
		kill(t, old)
		p := awaitProcess(t, d, spec.ProcessRef, func(driver.ProcessStatus) bool { return attendantOf(t, h, spec.ProcessRef) != old })
		if p.State != driver.Running || p.PID != started.PID {
			t.Fatalf("after its supervisor was killed it is %+v, want it as started: %+v", p, started)
		}
		counted(t, h, spec.ProcessRef, 20*(i+1))
	}
	p, err := d.StopProcess(t.Context(), spec.ProcessRef, driver.Stop{Grace: grace})
	if err != nil || p.Reason != "stopped" || !strings.HasSuffix(p.Output, "was told\n") {
		t.Errorf("stopped: %+v, %v", p, err)
	}
	if exact(t) && (p.ExitCode == nil || *p.ExitCode != 4) {
		t.Errorf("stopped: %+v, want status 4", p)
	}
	// Killed with its supervisor, nobody knows how it ended.
	p = startProcess(t, d, spec)
	kill(t, attendantOf(t, h, spec.ProcessRef))
	kill(t, p.PID)
	if p = awaitProcess(t, d, spec.ProcessRef, ended); p.ExitCode != nil || p.Reason != "ended while its supervisor was gone: exit status unknown" {
		t.Errorf("killed with its supervisor it ended as %+v", p)
	}
	remove(t, d)
}

// TestProcess_EndsWithItsMachine stops, kills, and removes the machine of a process.
func TestProcess_EndsWithItsMachine(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "sleep 600")
	m := run(t, d, spec)
	service := processSpec(m.Spec.Machine, "trap '' TERM; echo ready; while :; do sleep 600; done")
	for name, end := range map[string]func() error{
		"stop": func() error { _, err := d.Stop(t.Context(), m.Spec.Machine, 0); return err },
		"kill": func() error { kill(t, m.PID); await(t, d, m.Spec.Machine, exited); return nil },
	} {
		startProcess(t, d, service)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if p := awaitProcess(t, d, service.ProcessRef, ended); p.Reason != "ended with its instance" || p.Cause != driver.Machine {
			t.Errorf("%s: it ended as %+v", name, p)
		}
		var err error
		if m, err = d.Relaunch(t.Context(), m.Spec.Machine); err != nil {
			t.Fatal(err)
		}
	}
	// Its successor on the same disk has no processes yet.
	startProcess(t, d, service)
	if _, err := d.Stop(t.Context(), m.Spec.Machine, 0); err != nil {
		t.Fatal(err)
	}
	next := spec
	next.Machine, next.Generation = spec.Machine+"x", 2
	m = run(t, d, next)
	if all, err := d.ListProcesses(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("processes %+v, %v, want none", all, err)
	}
	service.Machine = m.Spec.Machine
	startProcess(t, d, service)
	remove(t, d)
	if all, err := d.ListProcesses(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("processes %+v, %v, want none", all, err)
	}
	if left, _ := filepath.Glob(filepath.Join(h.state, "processes", "*", "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestProcess_Stops(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	const wait = "; echo ready; while :; do sleep 600 & wait $!; done"
	for name, c := range map[string]struct {
		script string
		stop   driver.Stop
		code   int // -1: none
		output string
	}{
		"asked":             {"trap 'echo bye; exit 3' TERM" + wait, driver.Stop{Grace: grace}, 3, "bye\n"},
		"by another signal": {"trap 'echo quit; exit 4' QUIT" + wait, driver.Stop{Signal: "sigquit", Grace: grace}, 4, "quit\n"},
		"a shell's child":   {"trap 'exit 5' TERM; sh -c 'echo ready; exec sleep 600'; echo no", driver.Stop{Grace: grace}, 5, "ready\n"},
		"deaf":              {"trap '' TERM; setsid sleep 613 & echo ready; while :; do sleep 614; done", driver.Stop{Grace: 50 * time.Millisecond}, -1, "ready\n"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := processSpec(m.Spec.Machine, c.script)
			startProcess(t, d, spec)
			awaitProcess(t, d, spec.ProcessRef, func(driver.ProcessStatus) bool { return strings.Contains(logged(t, d, spec.ProcessRef), "ready") })
			p, err := d.StopProcess(t.Context(), spec.ProcessRef, c.stop)
			if err != nil || p.State != driver.Exited || p.Reason != "stopped" || p.Cause != driver.Stopped || !strings.Contains(p.Output, c.output) {
				t.Errorf("stopped: %+v, %v", p, err)
			}
			if p.ExitCode == nil && c.code >= 0 || p.ExitCode != nil && *p.ExitCode != c.code {
				t.Errorf("its status is %v, want %d", p.ExitCode, c.code)
			}
			if left := sleepers("613", "614"); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if again, err := d.StopProcess(t.Context(), spec.ProcessRef, c.stop); err != nil || !again.Ended.Equal(p.Ended) {
				t.Errorf("stopped again: %+v, %v", again, err)
			}
			if err := errors.Join(d.RemoveProcess(t.Context(), spec.ProcessRef), d.RemoveProcess(t.Context(), spec.ProcessRef)); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := d.StopProcess(t.Context(), driver.ProcessRef{Machine: m.Spec.Machine, Name: "a"}, driver.Stop{Signal: "NOSUCH"}); err == nil {
		t.Error("a signal that is none is taken")
	}
	remove(t, d)
}

// TestProcess_LogIsBoundedAndGoesOn floods a log, then starts the process again.
func TestProcess_LogIsBoundedAndGoesOn(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	spec := processSpec(m.Spec.Machine, "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo the last words")
	startProcess(t, d, spec)
	awaitProcess(t, d, spec.ProcessRef, ended)
	const written = 5_000_000 + 1 + int64(len("the last words\n"))
	part, err := d.ReadProcessLog(t.Context(), spec.ProcessRef, driver.LogRead{Limit: 10 << 20})
	if err != nil || part.End != written || part.Next() != written || len(part.Data) < driver.LogKept || len(part.Data) > 2<<20 {
		t.Errorf("kept: %d bytes from %d to %d, %v", len(part.Data), part.Offset, part.End, err)
	}
	if part, err = d.ReadProcessLog(t.Context(), spec.ProcessRef, driver.LogRead{Offset: written, Limit: 10}); err != nil || !part.Ended {
		t.Errorf("at its end: %+v, %v", part, err)
	}
	spec.Command[2] = "echo once more"
	startProcess(t, d, spec)
	awaitProcess(t, d, spec.ProcessRef, ended)
	if part, err = d.ReadProcessLog(t.Context(), spec.ProcessRef, driver.LogRead{Offset: -1, Tail: 2, Limit: 100}); err != nil || string(part.Data) != "the last words\nonce more\n" {
		t.Errorf("its last lines are %q, %v", part.Data, err)
	}
	for _, ref := range []driver.ProcessRef{{Machine: m.Spec.Machine, Name: "absent"}, {Machine: "../x", Name: "a"}, {}} {
		if _, err := d.ReadProcessLog(t.Context(), ref, driver.LogRead{Limit: 1}); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("read of %v: %v, want ErrNotFound", ref, err)
		}
	}
	remove(t, d)
}

func TestProcess_WatchTellsOfAnEnd(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	ctx, cancel := context.WithTimeout(t.Context(), grace)
	defer cancel()
	told := d.WatchProcesses(ctx)
	spec := processSpec(m.Spec.Machine, "exit 3")
	startProcess(t, d, spec)
	for ref := range told {
		if ref != spec.ProcessRef {
			t.Errorf("told of %v", ref)
		}
		if p := awaitProcess(t, d, ref, func(driver.ProcessStatus) bool { return true }); p.State == driver.Exited {
			cancel()
		}
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Error("nothing was told of the end")
	}
	remove(t, d)
}
