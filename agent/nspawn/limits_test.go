package nspawn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn"
)

// group returns the directory of a machine's group in the hierarchy of a controller.
func group(t *testing.T, h *host, machine, controller string) string {
	t.Helper()
	for _, dir := range groups(h.prefix) {
		if isGroupOf(dir, machine) && (isV2() || strings.HasPrefix(dir, "/sys/fs/cgroup/"+controller+"/")) {
			return dir
		}
	}
	t.Fatalf("%s has no %s group: %v", machine, controller, groups(h.prefix))
	return ""
}

// isV2 reports whether the controllers are in cgroup2.
func isV2() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// isGroupOf reports whether a cgroup is that of a machine, or of the unit that it runs in.
func isGroupOf(dir, machine string) bool {
	name := filepath.Base(dir)
	return name == machine || strings.HasSuffix(name, "-"+machine+".service")
}

// number reads a line of a control file, such as "nr_throttled 7".
func number(t *testing.T, path, name string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s: %s", path, name, text)
	return 0
}

// cpuSeconds returns what all processes of a group, in the cgroup2 hierarchy, have used.
func cpuSeconds(t *testing.T, h *host, machine string) float64 {
	t.Helper()
	for _, dir := range groups(h.prefix) {
		if stat := filepath.Join(dir, "cpu.stat"); isGroupOf(dir, machine) && strings.Contains(dir, "/unified/") {
			return float64(number(t, stat, "usage_usec")) / 1e6
		}
	}
	return float64(number(t, filepath.Join(group(t, h, machine, "cpu"), "cpu.stat"), "usage_usec")) / 1e6
}

func TestLimits_CPUQuotaBinds(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("spin", "while :; do :; done")
	run(t, d, spec)
	used := 0.0
	for range 8 { // on a machine that is busy otherwise it may get less than its quota for a while, never more
		before, begin := cpuSeconds(t, h, spec.Machine), time.Now()
		time.Sleep(2 * time.Second) // the window that is measured
		used = (cpuSeconds(t, h, spec.Machine) - before) / time.Since(begin).Seconds()
		if used >= 0.20 {
			break
		}
	}
	if used < 0.20 || used > 0.30 {
		t.Errorf("a spinning NANO used %.1f %% of a core, want 20 to 30", 100*used)
	}
	stat := filepath.Join(group(t, h, spec.Machine, "cpu"), "cpu.stat")
	if n := number(t, stat, "nr_throttled"); n == 0 {
		t.Error("it was not throttled once")
	}
	remove(t, d)
}

func TestLimits_MemoryAndProcessesBind(t *testing.T) {
	for name, c := range map[string]struct {
		script, reason, output string
		oom                    bool
	}{
		"within the memory": {"dd if=/dev/zero of=/dev/null bs=60M count=1 && echo fine", "exited with status 0", "fine", false},
		"beyond the memory": {"dd if=/dev/zero of=/dev/null bs=200M count=1", "out of memory", "", true},
		"a child beyond it": {"dd if=/dev/zero of=/dev/null bs=200M count=1; echo goes on", "exited with status 0", "goes on", true},
		"a tmpfs beyond it": {"dd if=/dev/zero of=/dev/shm/x bs=1M count=200; sleep 60", "out of memory", "", true},
		"too many processes": {
			"i=0; while [ $i -lt 400 ]; do sleep 60 & i=$((i+1)); done", "exited with status 2", "can't fork", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			d := nspawn.New(nspawn.Options{StateDir: h.state, CgroupPrefix: h.prefix + "group", Launcher: testLauncher(), Processes: 300})
			spec := h.spec("m", c.script)
			spec.CPUPercent = 200
			if _, err := d.Launch(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			m := await(t, d, spec.Machine, exited)
			if m.Reason != c.reason || m.OOM != c.oom || !strings.Contains(m.Output, c.output) {
				t.Errorf("ended with %q, OOM %v, output %q; want %q, OOM %v, output with %q", m.Reason, m.OOM, m.Output, c.reason, c.oom, c.output)
			}
			remove(t, d)
		})
	}
}

// TestLimits_EveryType asserts the limits of each type as the kernel has them while the payload runs.
func TestLimits_EveryType(t *testing.T) {
	h := newHost(t)
	d := h.open()
	for _, c := range []struct{ percent, megabytes int }{{25, 128}, {50, 256}, {100, 512}, {200, 1024}, {400, 2048}} {
		spec := h.spec(fmt.Sprintf("cpu%d", c.percent), "sleep 60")
		spec.CPUPercent, spec.MemoryMB = c.percent, c.megabytes
		m := run(t, d, spec)
		files := map[string]string{"cpu/cpu.cfs_quota_us": strconv.Itoa(c.percent * 1000), "memory/memory.limit_in_bytes": strconv.Itoa(c.megabytes << 20)}
		if isV2() {
			files = map[string]string{"cpu/cpu.max": fmt.Sprint(c.percent*1000, " 100000"), "memory/memory.max": strconv.Itoa(c.megabytes << 20), "memory/memory.swap.max": "0"}
		}
		for file, want := range files {
			controller, name := filepath.Split(file)
			dir := group(t, h, spec.Machine, filepath.Clean(controller))
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || strings.TrimSpace(string(text)) != want {
				t.Errorf("%d %%: %s is %q, %v, want %s", c.percent, file, text, err, want)
			}
			if isV2() { // systemd-nspawn divides the group, and can hand its controllers down
				dir = filepath.Join(dir, "payload")
				text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
				if err != nil || !strings.Contains(string(text), "cpu") || !strings.Contains(string(text), "memory") {
					t.Errorf("%s has the controllers %q, %v", dir, text, err)
				}
			}
			members, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil || !strings.Contains("\n"+string(members), fmt.Sprintf("\n%d\n", m.PID)) {
				t.Errorf("%d %%: %s has the processes %q, %v, want %d among them", c.percent, dir, members, err, m.PID)
			}
		}
	}
	remove(t, d)
}

// TestLimits_NotBinding has the supervisor expect other limits than the kernel has.
func TestLimits_NotBinding(t *testing.T) {
	h := newHost(t)
	wrapper := filepath.Join(t.TempDir(), "wrapper")
	script := fmt.Sprintf("#!/bin/sh\nsed -i 's/\"memory\":128/\"memory\":64/' \"$3/machine.json\"\nexec %s \"$@\"\n", os.Args[0])
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	d := nspawn.New(nspawn.Options{StateDir: h.state, CgroupPrefix: h.prefix + "group", Self: wrapper})
	m, err := d.Launch(t.Context(), h.spec("m", "sleep 60"))
	if err != nil {
		t.Fatal(err)
	}
	if m.State != driver.Exited || !strings.HasPrefix(m.Reason, "could not start: the memory limit does not bind: ") {
		t.Errorf("launched as %+v, want it Exited because a limit does not bind", m)
	}
	remove(t, d)
}
