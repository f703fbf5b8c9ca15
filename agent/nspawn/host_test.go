package nspawn_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/agent/nspawn"
)

// grace is longer than any payload of the tests needs to stop.
const grace = 20 * time.Second

// host is a state directory with the minimal image, on a network of its own.
type host struct {
	prefix string // of all names on the machine: mt, the test's process, a count
	state  string
	addrs  atomic.Int32
}

// nextHost is atomic so that each host of a run has names of its own.
var nextHost atomic.Int32

func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{prefix: fmt.Sprintf("mt%d-%d-", os.Getpid(), nextHost.Add(1))}
	h.state = filepath.Join("/var/tmp", h.prefix+"state") // not in /tmp, which may be a tmpfs or an overlay
	t.Cleanup(func() {
		if left := h.leftovers(); len(left) > 0 {
			t.Errorf("left on the machine:\n%s", strings.Join(left, "\n"))
			h.removeAll() // so that the tests that follow are not hurt
		}
		sweep(h.prefix)
	})
	if _, err := image.Open(filepath.Join(h.state, "images")).BuildMinimal(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	return h
}

// removeAll removes what a test that failed has left.
func (h *host) removeAll() {
	d := h.open()
	all, _ := d.List(context.Background())
	for _, m := range all {
		_ = d.Remove(context.Background(), m.Spec.Machine)
	}
}

// open returns a driver on the host's state, as a restarted agent has it.
func (h *host) open() *nspawn.Driver {
	return nspawn.New(nspawn.Options{StateDir: h.state, CgroupPrefix: h.prefix + "group", Launcher: testLauncher(), HostPaths: h.hostPaths()})
}

// shared is the directory of the host's own that machines are allowed.
func (h *host) shared() string { return filepath.Join("/var/tmp", h.prefix+"shared") }

// hostPaths makes what is allowed.
func (h *host) hostPaths() []string {
	_ = os.MkdirAll(h.shared(), 0o755) // a launch says so
	return []string{h.shared()}
}

// testLauncher is what MUSTER_TEST_LAUNCHER asks for, on hosts where both work.
func testLauncher() nspawn.Launcher { return nspawn.Launcher(os.Getenv("MUSTER_TEST_LAUNCHER")) }

// complete adds the image, a NANO's limits and an address.
func (h *host) complete(spec driver.Spec) driver.Spec {
	spec.Image, spec.CPUPercent, spec.MemoryMB = image.Minimal, 25, 128
	spec.Addr = fmt.Sprintf("10.213.7.%d/24", 2+h.addrs.Add(1)%250)
	spec.Gateway = "10.213.7.1"
	return spec
}

// spec returns a first generation with a shell command.
func (h *host) spec(name, script string) driver.Spec {
	return h.complete(driver.Spec{
		Machine: h.prefix + name, Disk: h.prefix + name, Instance: "i-1", Generation: 1,
		Hostname: name, Command: []string{"/bin/sh", "-c", script},
	})
}

// run launches what has to be running afterwards.
func run(t testing.TB, d *nspawn.Driver, spec driver.Spec) driver.Status {
	t.Helper()
	status, err := d.Launch(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if status.State != driver.Running {
		t.Fatalf("launched as %+v, want it running", status)
	}
	return status
}

// await polls until a machine is as it should be: real processes take their time.
func await(t testing.TB, d *nspawn.Driver, machine string, ok func(driver.Status) bool) driver.Status {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		all, err := d.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(m driver.Status) bool { return m.Spec.Machine == machine })
		if i >= 0 && ok(all[i]) {
			return all[i]
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come to the state that is waited for: %+v", machine, all)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// exact reports whether the kernel tells how a process ended that is no child.
func exact(t *testing.T) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(text), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 15
}

func exited(m driver.Status) bool { return m.State == driver.Exited }

// remove removes everything that the driver has.
func remove(t testing.TB, d *nspawn.Driver) {
	t.Helper()
	all, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if err := d.Remove(t.Context(), m.Spec.Machine); err != nil {
			t.Error(err)
		}
	}
}

// console returns what a machine has printed.
func (h *host) console(machine string) string {
	text, _ := os.ReadFile(filepath.Join(h.state, "machines", machine, "console.log"))
	return string(text)
}

// leftovers returns whatever is on the machine under the host's names, but its images.
func (h *host) leftovers() []string {
	return append(traces(h.prefix), h.files()...)
}

func (h *host) files() []string {
	var left []string
	for _, dir := range []string{"machines", "locks", "disks", "volumes"} {
		entries, _ := os.ReadDir(filepath.Join(h.state, dir))
		for _, entry := range entries {
			left = append(left, "file "+filepath.Join(dir, entry.Name()))
		}
	}
	return left
}

// traces returns the processes, mounts, namespaces, interfaces and cgroups with a prefix.
func traces(prefix string) []string {
	var left []string
	for _, pid := range processes(prefix) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d %q", pid, text))
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, prefix) {
			left = append(left, "mount "+line)
		}
	}
	names, _ := filepath.Glob("/run/netns/" + prefix + "*")
	left = append(append(left, names...), groups(prefix)...)
	left = append(left, loops(prefix)...)
	links, _ := netlink.LinkList()
	for _, link := range links {
		if name := link.Attrs().Name; os.Getenv("MUSTER_TEST_NETNS") != "" && name != "lo" {
			left = append(left, "interface "+name)
		}
	}
	return left
}

// loops returns the loop devices that show files with the prefix.
func loops(prefix string) []string {
	var left []string
	paths, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range paths {
		if text, _ := os.ReadFile(path); strings.Contains(string(text), prefix) {
			left = append(left, "loop device of "+strings.TrimSpace(string(text)))
		}
	}
	return left
}

// processes returns those that were started with the prefix in an argument, other than this one.
func processes(prefix string) []int {
	var pids []int
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if strings.Contains(string(text), prefix) && pid != os.Getpid() && pid != os.Getppid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// groups returns the cgroups with the prefix in their own names, children first. Slices are systemd's, and stay.
func groups(prefix string) []string {
	var dirs []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(path, "/"+prefix) && filepath.Ext(path) != ".slice" {
			dirs = append([]string{path}, dirs...)
		}
		return nil
	})
	return dirs
}

// sweep removes what a test that was killed has left under a prefix.
func sweep(prefix string) {
	for range 100 {
		dirs := groups(prefix)
		for _, dir := range dirs {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		}
		for _, dir := range dirs {
			_ = syscall.Rmdir(dir)
		}
		if len(dirs) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond) // processes take a moment to end
	}
	names, _ := filepath.Glob("/run/netns/" + prefix + "*")
	for _, name := range names {
		_ = syscall.Unmount(name, syscall.MNT_DETACH)
		_ = os.Remove(name)
	}
	states, _ := filepath.Glob("/var/tmp/" + prefix + "*")
	for _, state := range states {
		_ = os.RemoveAll(state)
	}
}

// sweepDead sweeps after runs of these tests whose process is gone.
func sweepDead() {
	names, _ := filepath.Glob("/run/netns/mt[0-9]*")
	states, _ := filepath.Glob("/var/tmp/mt[0-9]*")
	for _, path := range append(append(names, states...), groups("mt")...) {
		_, rest, _ := strings.Cut(path, "/mt")
		pid, _, _ := strings.Cut(rest, "-")
		if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, 0) != nil {
			sweep("mt" + pid + "-")
		}
	}
}
