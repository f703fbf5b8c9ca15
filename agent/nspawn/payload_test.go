package nspawn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/agent/nspawn"
	"github.com/muster-cloud/muster/internal/testhost"
)

// TestPayload_EnvironmentIsSecret looks for a value where everybody on the host can.
func TestPayload_EnvironmentIsSecret(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "sleep 60")
	spec.Env = map[string]string{"TOKEN": "s3cr3t-" + h.prefix, "LD_PRELOAD": "/nosuch.so"}
	m := run(t, d, spec)
	for _, pid := range processes(h.prefix) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(text), "s3cr3t") {
			t.Errorf("the command line of process %d has the value: %q", pid, text)
		}
	}
	for _, file := range []string{"machine.json", "state.json", "console.log", "supervisor.log"} {
		info, err := os.Stat(filepath.Join(h.state, "machines", spec.Machine, file))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want it for root only", file, info.Mode(), err)
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", payloadOf(t, m.PID)))
	if err != nil || !strings.Contains(string(text), "LD_PRELOAD=/nosuch.so\x00") || !strings.Contains(string(text), "TOKEN=s3cr3t") {
		t.Errorf("the payload has not got its variables: %q, %v", text, err)
	}
	for _, which := range []string{"supervisor", "nspawn"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid(t, h, m.Spec.Machine, which)))
		if err != nil || strings.Contains(string(text), "LD_PRELOAD") {
			t.Errorf("the payload's variables reach the %s: %q, %v", which, text, err)
		}
	}
	remove(t, d)
}

// payloadOf returns the child of a machine's process 1.
func payloadOf(t *testing.T, leader int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", leader, leader))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.Fields(string(text))[0])
	if err != nil {
		t.Fatal(err)
	}
	return child
}

func TestPayload_StartTimeout(t *testing.T) {
	h := newHost(t)
	wrapper := filepath.Join(t.TempDir(), "systemd-nspawn")
	if err := os.WriteFile(wrapper, []byte("#!/bin/sh\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(wrapper)+":"+os.Getenv("PATH"))
	d := nspawn.New(nspawn.Options{StateDir: h.state, CgroupPrefix: h.prefix + "group", StartTimeout: 200 * time.Millisecond})
	m, err := d.Launch(t.Context(), h.spec("a", "sleep 60"))
	if err != nil || m.State != driver.Exited || m.Reason != "could not start: it did not run within 200ms" {
		t.Errorf("launched as %+v, %v", m, err)
	}
	remove(t, d)
}

func TestPayload_BrokenImage(t *testing.T) {
	h := newHost(t)
	d := h.open()
	if err := os.Mkdir(filepath.Join(h.state, "images/empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	spec := h.spec("a", "sleep 60")
	spec.Image = "empty"
	m, err := d.Launch(t.Context(), spec)
	if err != nil || m.State != driver.Exited || !strings.HasPrefix(m.Reason, "could not start: ") || !strings.Contains(m.Reason, "/usr") {
		t.Errorf("launched as %+v, %v, want systemd-nspawn's complaint about /usr", m, err)
	}
	remove(t, d)
}

// TestPayload_BootsSystemd makes a bootable image of packages that this machine has, and boots it within MEDIUM's limits.
func TestPayload_BootsSystemd(t *testing.T) {
	h := newHost(t)
	d := h.open()
	root := filepath.Join(h.state, "images/debian")
	if err := testhost.BuildRoot(t.Context(), root, "systemd", "dbus", "base-files", "libc-bin", "coreutils", "bash", "dash", "util-linux"); err != nil {
		t.Fatal(err)
	}
	if img, err := image.Open(filepath.Dir(root)).Find("debian"); err != nil || !img.Boot {
		t.Errorf("found %+v, %v, want it bootable", img, err)
	}
	spec := h.spec("a", "")
	spec.Image, spec.Command, spec.CPUPercent, spec.MemoryMB = "debian", nil, 200, 1024
	m := run(t, d, spec)
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.PID)); err != nil || string(comm) != "systemd\n" {
		t.Errorf("process 1 is %q, %v", comm, err)
	}
	if got := within(t, d, spec.Machine, "systemctl show --property=Version --value; id -un"); !strings.HasSuffix(got, "\nroot\n") {
		t.Errorf("a command in it says %q", got)
	}
	p := startProcess(t, d, processSpec(spec.Machine, "exec sleep 600"))
	for _, name := range []string{"CapBnd", "NoNewPrivs", "Seccomp"} {
		if got, want := field(t, p.PID, name), field(t, m.PID, name); got != want {
			t.Errorf("a process's %s is %s, that of its systemd %s", name, got, want)
		}
	}
	stopped, err := d.Stop(t.Context(), spec.Machine, grace)
	if err != nil || stopped.Reason != "stopped" || stopped.ExitCode == nil || *stopped.ExitCode != 0 {
		t.Errorf("stopped %+v, %v, want it powered off with status 0", stopped, err)
	}
	if !strings.Contains(stopped.Output, "Power") {
		t.Errorf("its console ends with %q, want systemd's words", stopped.Output)
	}
	remove(t, d)
}

func TestCheck_SaysWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", "/nosuch")
	err := nspawn.New(nspawn.Options{StateDir: "relative:dir"}).Check(t.Context())
	if muster.CodeOf(err) != muster.Unavailable {
		t.Fatalf("check: %v, want UNAVAILABLE", err)
	}
	for _, want := range []string{"apt-get install systemd-container", `the state directory "relative:dir" cannot be mounted on`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("check: %v, want %q in it", err, want)
		}
	}
}

// TestPayload_KilledBySignal accepts 255, which is all that systemd-nspawn says, where the kernel does not tell more.
func TestPayload_KilledBySignal(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "sleep 0.3; kill -SEGV $$")
	if _, err := d.Launch(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	want := "killed by signal 11"
	if !exact(t) {
		want = "exited with status 255"
	}
	if m := await(t, d, spec.Machine, exited); m.Reason != want || m.OOM {
		t.Errorf("ended with %q, want %q", m.Reason, want)
	}
	remove(t, d)
}

func TestPayload_Hostnames(t *testing.T) {
	h := newHost(t)
	d := h.open()
	for i, name := range []string{"Web_1.example", strings.Repeat("x", 63), "7"} {
		spec := h.spec(fmt.Sprintf("a%d", i), "hostname")
		spec.Hostname = name
		if _, err := d.Launch(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		want := strings.ReplaceAll(name, "_", "-") + "\n"
		if m := await(t, d, spec.Machine, exited); m.Output != want {
			t.Errorf("hostname %q: ended with %q, output %q", name, m.Reason, m.Output)
		}
	}
	remove(t, d)
}

// TestPayload_DamagedRecord has a machine whose record is lost while it runs: it is shown and can be removed.
func TestPayload_DamagedRecord(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "sleep 60")
	run(t, d, spec)
	if err := os.WriteFile(filepath.Join(h.state, "machines", spec.Machine, "machine.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, d, h.spec("b", "sleep 60"))
	m := await(t, d, spec.Machine, exited)
	if !strings.Contains(m.Reason, "machine.json") {
		t.Errorf("it is listed as %+v, want the damage in the reason", m)
	}
	remove(t, d)
	if left := h.leftovers(); !slices.Equal(left, []string{"file disks/" + spec.Disk}) {
		t.Errorf("left: %v, want the disk that only the record had named", left)
	}
	if err := os.RemoveAll(filepath.Join(h.state, "disks", spec.Disk)); err != nil {
		t.Error(err)
	}
}
