package nspawn_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn"
)

// state reads a file of a machine's.
func state(t *testing.T, h *host, machine, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.state, "machines", machine, file))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	return fields
}

// pid returns the PID of one of a machine's processes: supervisor, nspawn or leader.
func pid(t *testing.T, h *host, machine, which string) int {
	t.Helper()
	process, ok := state(t, h, machine, "state.json")[which].(map[string]any)
	if !ok {
		t.Fatalf("%s has no %s", machine, which)
	}
	return int(process["pid"].(float64))
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestSurvive_AgentKilled has another process launch a machine and be killed.
func TestSurvive_AgentKilled(t *testing.T) {
	h := newHost(t)
	spec := h.spec("a", "trap 'echo was stopped; exit 4' TERM; echo trapped; while :; do sleep 60 & wait $!; done")
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.CommandContext(t.Context(), os.Args[0], "agent", h.state, h.prefix+"group", string(text))
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	var launched driver.Status
	if err := json.NewDecoder(out).Decode(&launched); err != nil {
		t.Fatal(err)
	}
	kill(t, agent.Process.Pid)
	if err := agent.Wait(); err == nil {
		t.Error("the agent ended by itself")
	}
	d := h.open()
	adopted := await(t, d, spec.Machine, func(driver.Status) bool { return strings.Contains(h.console(spec.Machine), "trapped") })
	if adopted.State != driver.Running || adopted.PID != launched.PID || !adopted.Started.Equal(launched.Started) {
		t.Errorf("adopted %+v, want it as launched: %+v", adopted, launched)
	}
	stopped, err := d.Stop(t.Context(), spec.Machine, grace)
	if err != nil || stopped.ExitCode == nil || *stopped.ExitCode != 4 || !strings.Contains(stopped.Output, "was stopped") {
		t.Errorf("stopped %+v, %v, want status 4", stopped, err)
	}
	remove(t, d)
}

func TestSurvive_SupervisorKilled(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "trap 'echo was stopped; exit 4' TERM; echo trapped; while :; do sleep 60 & wait $!; done")
	launched := run(t, d, spec)
	for range 2 { // the second one is no child of systemd-nspawn's parent any more
		old := pid(t, h, spec.Machine, "supervisor")
		kill(t, old)
		m := await(t, d, spec.Machine, func(driver.Status) bool { return pid(t, h, spec.Machine, "supervisor") != old })
		if m.State != driver.Running || m.PID != launched.PID {
			t.Fatalf("after its supervisor was killed it is %+v, want it as launched: %+v", m, launched)
		}
	}
	await(t, d, spec.Machine, func(driver.Status) bool { return strings.Contains(h.console(spec.Machine), "trapped") })
	m, err := d.Stop(t.Context(), spec.Machine, grace)
	if err != nil || m.State != driver.Exited || m.Reason != "stopped" || !strings.Contains(m.Output, "was stopped") {
		t.Errorf("stopped %+v, %v, want it stopped", m, err)
	}
	if exact(t) && (m.ExitCode == nil || *m.ExitCode != 4) {
		t.Errorf("stopped %+v, want status 4", m)
	}
	remove(t, d)
}

func TestSurvive_Kills(t *testing.T) {
	for name, c := range map[string]struct {
		kill   []string
		reason string
	}{
		"systemd-nspawn":                    {[]string{"nspawn"}, "killed by signal 9"},
		"process 1 of the machine":          {[]string{"leader"}, ""},
		"supervisor and systemd-nspawn":     {[]string{"supervisor", "nspawn"}, "exit status unknown"},
		"supervisor, systemd-nspawn and it": {[]string{"supervisor", "nspawn", "leader"}, "exit status unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			d := h.open()
			spec := h.spec("a", "while :; do sleep 1; done")
			run(t, d, spec)
			pids := []int{}
			for _, which := range c.kill {
				pids = append(pids, pid(t, h, spec.Machine, which))
			}
			for _, pid := range pids {
				kill(t, pid)
			}
			m := await(t, d, spec.Machine, exited)
			if c.reason == "" {
				c.reason = "exited with status 255"
				if exact(t) {
					c.reason = "killed by signal 9"
				}
			}
			if !strings.Contains(m.Reason, c.reason) {
				t.Errorf("ended with %q, want %q", m.Reason, c.reason)
			}
			bridge := "interface " + d.Network().Bridge() // goes with the last machine
			if left := traces(h.prefix + "a"); !slices.Equal(left, []string{bridge}) {
				t.Errorf("left of it: %v", left)
			}
			remove(t, d)
		})
	}
}

// TestSurvive_Interrupted has machines whose launch, or whose host, ended under them.
func TestSurvive_Interrupted(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		reason string
	}{
		"before the supervisor began": {func(t *testing.T, dir string) { unlink(t, dir, "state.json") }, "could not start: its launch was interrupted"},
		"by a power failure": {func(t *testing.T, dir string) {
			edit(t, dir, "machine.json", func(fields map[string]any) { fields["hostBoot"] = "another" })
			if err := os.WriteFile(filepath.Join(dir, "state.json"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "the host was restarted"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			d := h.open()
			spec := h.spec("a", "exit 0")
			if _, err := d.Launch(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			await(t, d, spec.Machine, exited)
			dir := filepath.Join(h.state, "machines", spec.Machine)
			unlink(t, dir, "exit.json")
			c.damage(t, dir)
			d = h.open()
			m := await(t, d, spec.Machine, exited)
			if m.Reason != c.reason || m.ExitCode != nil {
				t.Errorf("found as %+v, want %q", m, c.reason)
			}
			if _, err := d.Relaunch(t.Context(), spec.Machine); err != nil {
				t.Error(err)
			}
			if m = await(t, d, spec.Machine, exited); m.Reason != "exited with status 0" {
				t.Errorf("after it was launched again it ended as %+v", m)
			}
			remove(t, d)
		})
	}
}

func unlink(t *testing.T, dir, file string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, file)); err != nil {
		t.Fatal(err)
	}
}

func edit(t *testing.T, dir, file string, change func(map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, file)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	change(fields)
	if text, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestSurvive_CrashedRemoval has what a crash in the middle of a removal or a launch leaves.
func TestSurvive_CrashedRemoval(t *testing.T) {
	h := newHost(t)
	for _, dir := range []string{"machines/.gone-x", "machines/.new-x", "disks/.gone-x/upper", "disks/" + h.prefix + "a/upper/old"} {
		if err := os.MkdirAll(filepath.Join(h.state, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d := h.open()
	spec := h.spec("a", "ls -d /old")
	if _, err := d.Launch(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if m := await(t, d, spec.Machine, exited); m.Reason != "exited with status 1" {
		t.Errorf("ended as %+v, want its disk fresh", m)
	}
	remove(t, d)
}

// TestSurvive_SupervisorThatCannotRun has a binary that ends at once, as after a failed upgrade.
func TestSurvive_SupervisorThatCannotRun(t *testing.T) {
	h := newHost(t)
	for self, message := range map[string]string{"/bin/false": "could not start: its launch was interrupted", "/nosuch": ""} {
		d := nspawn.New(nspawn.Options{StateDir: h.state, CgroupPrefix: h.prefix + "group", Self: self})
		m, err := d.Launch(t.Context(), h.spec("a", "sleep 60"))
		if message == "" {
			if err == nil || !strings.Contains(err.Error(), "start the supervisor") {
				t.Errorf("%s: launched as %+v, %v, want an error", self, m, err)
			}
		} else if err != nil || m.State != driver.Exited || m.Reason != message {
			t.Errorf("%s: launched as %+v, %v, want %q", self, m, err, message)
		}
		for again := 1; message != "" && again <= 2; again++ {
			if !m.Cut {
				t.Errorf("%s: after %d launches no other is worth a try", self, again)
			}
			if m, err = d.Relaunch(t.Context(), m.Spec.Machine); err != nil {
				t.Fatal(err)
			}
		}
		if m.Cut {
			t.Errorf("%s: after three launches another is worth a try", self)
		}
		remove(t, d)
	}
}
