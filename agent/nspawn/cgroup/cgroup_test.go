package cgroup_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// host is a fake procfs and group file system.
func host(t *testing.T, groups, mounts string) (proc, root string) {
	t.Helper()
	proc, root = t.TempDir(), t.TempDir()
	put(t, filepath.Join(proc, "self/cgroup"), groups)
	put(t, filepath.Join(proc, "self/mountinfo"), strings.ReplaceAll(mounts, "ROOT", root))
	return proc, root
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

const (
	hybridGroups = "9:name=systemd:/\n8:pids:/\n4:memory:/own/deep\n3:cpuset:/\n2:cpu,cpuacct:/\n0::/\n"
	hybridMounts = `30 1 0:1 / / rw - ext4 /dev/vda rw
31 1 0:26 / ROOT/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 1 0:27 / ROOT/memory rw,relatime - cgroup cgroup rw,memory
33 1 0:28 / ROOT/pids rw,relatime - cgroup cgroup rw,pids
34 1 0:29 / ROOT/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
35 1 0:30 / ROOT/unified rw,relatime - cgroup2 cgroup2 rw
36 1 0:31 / ROOT/cpuset rw,relatime - cgroup cgroup rw,cpuset
37 1 0:27 / ROOT/memory-again rw,relatime - cgroup cgroup rw,memory
`
	v2Mounts = "30 1 0:1 /agent.slice ROOT rw - cgroup2 none rw,nsdelegate\n"
)

func TestFind_Hierarchies(t *testing.T) {
	for name, c := range map[string]struct {
		groups, mounts string
		want           map[string]string
	}{
		"hybrid": {hybridGroups, hybridMounts, map[string]string{
			"cpu": "cpu/m/i", "memory": "memory/own/deep/m/i", "pids": "pids/m/i", "name=systemd": "systemd/m/i", "": "unified/m/i",
		}},
		"v2, mounted at a group": {"0::/agent.slice/agent.service\n", v2Mounts, map[string]string{"": "agent.service/m/i"}},
		"v2, in a group beside":  {"0::/agent.slice/agent.service/agent\n", v2Mounts, map[string]string{"": "agent.service/m/i"}},
	} {
		t.Run(name, func(t *testing.T) {
			proc, root := host(t, c.groups, c.mounts)
			put(t, filepath.Join(root, "agent.service/cgroup.controllers"), "cpuset cpu io memory pids\n")
			own, err := cgroup.Find(proc)
			if err != nil {
				t.Fatal(err)
			}
			got := own.Group("m/i").Dirs
			if len(got) != len(c.want) {
				t.Errorf("directories %v, want %v", got, c.want)
			}
			for controller, dir := range c.want {
				if got[controller] != filepath.Join(root, dir) {
					t.Errorf("%q is at %s, want %s", controller, got[controller], dir)
				}
			}
		})
	}
}

func TestAt(t *testing.T) {
	for name, c := range map[string]struct {
		groups, mounts string
		want           map[string]string
	}{
		"hybrid": {hybridGroups, hybridMounts, map[string]string{
			"cpu": "cpu/m.slice/i.service", "memory": "memory/m.slice/i.service", "pids": "pids/m.slice/i.service", "name=systemd": "systemd/m.slice/i.service", "": "unified/m.slice/i.service",
		}},
		"v2, where the own group has no controllers": {
			"0::/user.slice\n", "30 1 0:1 / ROOT rw - cgroup2 none rw,nsdelegate\n", map[string]string{"": "m.slice/i.service"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			proc, root := host(t, c.groups, c.mounts)
			g, err := cgroup.At(proc, "/m.slice/i.service")
			if err != nil {
				t.Fatal(err)
			}
			for controller, dir := range c.want {
				if g.Dirs[controller] != filepath.Join(root, dir) {
					t.Errorf("%q is at %s, want %s", controller, g.Dirs[controller], dir)
				}
			}
			if len(g.Dirs) != len(c.want) || g.V2 != (len(c.want) == 1) {
				t.Errorf("found %+v, want %v", g, c.want)
			}
		})
	}
}

// TestMakeRoom has a group whose controllers the process is in the way of, alone or with others.
func TestMakeRoom(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for name, c := range map[string]struct{ procs, message string }{
		"alone":       {self + "\n", ""},
		"with others": {"1\n" + self + "\n", "has other processes too, such as 1"},
	} {
		t.Run(name, func(t *testing.T) {
			proc, root := host(t, "0::/agent.slice/agent.service\n", v2Mounts)
			put(t, filepath.Join(root, "agent.service/cgroup.controllers"), "cpu memory pids\n")
			put(t, filepath.Join(root, "agent.service/cgroup.procs"), c.procs)
			put(t, filepath.Join(root, "agent.service/agent/cgroup.procs"), "")
			own, err := cgroup.Find(proc)
			if err != nil {
				t.Fatal(err)
			}
			err = own.MakeRoom()
			moved, _ := os.ReadFile(filepath.Join(root, "agent.service/agent/cgroup.procs"))
			if c.message == "" && (err != nil || string(moved) != self) {
				t.Errorf("make room: %v, moved %q", err, moved)
			}
			if c.message != "" && (muster.CodeOf(err) != muster.Unavailable || !strings.Contains(err.Error(), c.message) || len(moved) > 0) {
				t.Errorf("make room: %v, moved %q, want UNAVAILABLE: %s", err, moved, c.message)
			}
		})
	}
}

func TestFind_SaysWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct{ groups, mounts, controllers, message string }{
		"nothing mounted":     {"0::/\n", "", "", "no cgroup hierarchy is mounted"},
		"v1 without pids":     {hybridGroups, strings.ReplaceAll(hybridMounts, "pids", "blkio"), "", "the cgroup controller pids is mounted nowhere"},
		"v2 without a memory": {"0::/\n", v2Mounts, "cpu pids", "has no controller memory: run the agent as a unit with Delegate=yes"},
	} {
		t.Run(name, func(t *testing.T) {
			proc, root := host(t, c.groups, c.mounts)
			put(t, filepath.Join(root, "cgroup.controllers"), c.controllers)
			_, err := cgroup.Find(proc)
			if muster.CodeOf(err) != muster.Unavailable || !strings.Contains(err.Error(), c.message) {
				t.Errorf("find: %v, want UNAVAILABLE: %s", err, c.message)
			}
		})
	}
}

func FuzzFind(f *testing.F) {
	f.Add(hybridGroups, hybridMounts)
	f.Add("0::/agent.slice\n", v2Mounts)
	f.Fuzz(func(t *testing.T, groups, mounts string) {
		proc, _ := host(t, groups, mounts)
		own, err := cgroup.Find(proc)
		if err == nil && len(own.Group("m").Dirs) == 0 {
			t.Error("found without an error, yet nowhere")
		}
	})
}

// TestGroup_V2 writes to a fake tree; internal/build/v2 has the real one.
func TestGroup_V2(t *testing.T) {
	proc, root := host(t, "0::/agent.slice\n", v2Mounts)
	put(t, filepath.Join(root, "cgroup.controllers"), "cpu memory pids")
	for _, file := range []string{"cgroup.subtree_control", "m/cgroup.subtree_control", "m/i/cpu.max", "m/i/memory.max", "m/i/pids.max", "m/i/cgroup.procs"} {
		put(t, filepath.Join(root, file), "")
	}
	put(t, filepath.Join(root, "m/i/memory.events"), "low 0\noom 3\noom_kill 2\n")
	own, err := cgroup.Find(proc)
	if err != nil {
		t.Fatal(err)
	}
	g := own.Group("m/i")
	limits := cgroup.Limits{CPUPercent: 25, MemoryMB: 128, Processes: 99}
	for _, step := range []func() error{
		g.Create, func() error { return g.LimitSpace(limits) }, func() error { return g.LimitCPU(limits) },
		func() error { return g.Join(4711) }, func() error { return g.Verify(limits) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		"cgroup.subtree_control": "+cpu +memory +pids", "m/cgroup.subtree_control": "+cpu +memory +pids",
		"m/i/cpu.max": "25000 100000", "m/i/memory.max": "134217728", "m/i/pids.max": "99", "m/i/cgroup.procs": "4711",
	} {
		if got, err := os.ReadFile(filepath.Join(root, file)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v, want %q", file, got, err, want)
		}
	}
	if has, err := g.Has(4711); err != nil || !has || !g.OutOfMemory() {
		t.Errorf("has the process: %v, %v; out of memory: %v", has, err, g.OutOfMemory())
	}
	put(t, filepath.Join(root, "m/i/memory.max"), "max\n")
	if err := g.Verify(limits); err == nil || !strings.Contains(err.Error(), `the memory limit does not bind`) {
		t.Errorf("verify: %v, want it to name the memory limit", err)
	}
}

// groupHere returns a group on this host, as another process would read it, whose parent the test's end removes.
func groupHere(t *testing.T) cgroup.Group {
	t.Helper()
	own, err := cgroup.Find("")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(own.Hasten(), own.MakeRoom()); err != nil {
		t.Error(err)
	}
	parent := own.Group(fmt.Sprintf("muster-test-cg%d", os.Getpid()))
	t.Cleanup(func() {
		if err := parent.Remove(); err != nil {
			t.Error(err)
		}
	})
	written, err := json.Marshal(own.Group(fmt.Sprintf("muster-test-cg%d/i", os.Getpid())))
	if err != nil {
		t.Fatal(err)
	}
	var g cgroup.Group
	if err := json.Unmarshal(written, &g); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(g.Parent().Dirs, parent.Dirs) {
		t.Errorf("its parent is at %v, want %v", g.Parent().Dirs, parent.Dirs)
	}
	return g
}

func TestGroup_OnThisHost(t *testing.T) {
	g := groupHere(t)
	limits := cgroup.Limits{CPUPercent: 50, MemoryMB: 64, Processes: 20}
	for _, step := range []func() error{
		g.Kill, g.Remove, g.Create, g.Create,
		func() error { return g.LimitSpace(limits) }, func() error { return g.LimitCPU(limits) }, func() error { return g.Verify(limits) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	member := join(t, g)
	for pid, want := range map[int]bool{member.Process.Pid: true, os.Getpid(): false} {
		if has, err := g.Has(pid); err != nil || has != want {
			t.Errorf("has process %d: %v, %v, want %v", pid, has, err, want)
		}
	}
	g.RemoveEmpty() // it is in use
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if err := member.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process ended with %v", err)
	}
	if pids, err := g.Processes(); err != nil || len(pids) != 0 {
		t.Errorf("left: %v, %v", pids, err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	for _, dir := range g.Dirs {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("left: %s", dir)
		}
	}
}

// join starts a shell in the group, which then has children there too.
func join(t *testing.T, g cgroup.Group) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "read go; sleep 60 & sleep 60 & wait")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.Join(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if _, err := fmt.Fprintln(stdin); err != nil {
		t.Error(err)
	}
	return cmd
}
