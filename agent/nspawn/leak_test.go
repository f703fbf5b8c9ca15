package nspawn_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/image"
)

const launches = 50

// totals counts what the whole machine has; others may work on it, so that only growth by
// as many as were launched counts as a leak.
func totals(t *testing.T) map[string]int {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	names, _ := filepath.Glob("/run/netns/*")
	propagated, _ := filepath.Glob("/run/systemd/nspawn/*/*")
	dirs := 0
	_ = filepath.WalkDir("/sys/fs/cgroup", func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs++
		}
		return nil
	})
	spaces := map[string]bool{}
	paths, _ := filepath.Glob("/proc/[0-9]*/ns/*")
	for _, path := range paths {
		if to, err := os.Readlink(path); err == nil {
			spaces[to] = true
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	return map[string]int{
		"mounts": strings.Count(string(mounts), "\n"), "interfaces": len(links), "network namespaces": len(names),
		"cgroups": dirs, "namespaces": len(spaces), "processes": len(processes), "files in /run/systemd/nspawn": len(propagated),
	}
}

func TestLeak_FiftyLaunchesLeaveNothing(t *testing.T) {
	h := newHost(t)
	d := h.open()
	before := totals(t)
	var group sync.WaitGroup
	for worker := range 2 {
		group.Go(func() {
			for i := range launches / 2 {
				spec := h.spec(fmt.Sprintf("m%d-%d", worker, i), "sleep 60")
				if i%5 == 4 {
					spec.Command = []string{"/bin/sh", "-c", "sleep 60 & exit 7"}
				}
				if _, err := d.Launch(t.Context(), spec); err != nil {
					t.Error(err)
				}
				if i%2 == 0 {
					if _, err := d.Stop(t.Context(), spec.Machine, grace); err != nil {
						t.Error(err)
					}
				}
				if err := d.Remove(t.Context(), spec.Machine); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if left := h.leftovers(); len(left) != 0 {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
	for what, n := range totals(t) {
		if n >= before[what]+launches/2 {
			t.Errorf("%d %s, %d before", n, what, before[what])
		}
	}
}

// TestLeak_LaunchWritesLittle counts the bytes that a launch adds to the state directory, as they are and
// as sparse files would claim, for a small and a large image.
func TestLeak_LaunchWritesLittle(t *testing.T) {
	h := newHost(t)
	d := h.open()
	for _, megabytes := range []int64{5, 500} {
		name := fmt.Sprintf("image%d", megabytes)
		grow(t, h, name, megabytes<<20)
		spec := h.spec(name, "sleep 60")
		spec.Image = name
		before := bytesIn(t, h.state)
		run(t, d, spec)
		written := bytesIn(t, h.state) - before
		t.Logf("an image of %d MB: %d bytes", megabytes, written)
		if written <= 0 || written >= 1<<20 {
			t.Errorf("a launch of an image of %d MB wrote %d bytes, want less than 1 MB", megabytes, written)
		}
	}
	remove(t, d)
}

// grow makes an image of a size out of the minimal one.
func grow(t *testing.T, h *host, name string, size int64) {
	t.Helper()
	images := filepath.Join(h.state, "images")
	if err := os.CopyFS(filepath.Join(images, name), os.DirFS(filepath.Join(images, image.Minimal))); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(images, name, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
}

// bytesIn sums the sizes of all files below a directory.
func bytesIn(t *testing.T, dir string) int64 {
	t.Helper()
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func TestDriver_Images(t *testing.T) {
	h := newHost(t)
	grow(t, h, "a-copy", 0)
	got, err := h.open().Images(t.Context())
	if err != nil || !slices.Equal(got, []string{"a-copy", image.Minimal}) {
		t.Errorf("images %v, %v", got, err)
	}
}

// TestLeak_ProcessesLeaveNothing starts, stops and removes processes, and runs commands.
func TestLeak_ProcessesLeaveNothing(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600")).Spec.Machine
	before := totals(t)
	var group sync.WaitGroup
	for worker := range 2 {
		group.Go(func() {
			spec := processSpec(m, "sleep 600 & sleep 600")
			spec.Name = fmt.Sprintf("svc-%d", worker)
			for range launches / 2 {
				if _, err := d.StartProcess(t.Context(), spec); err != nil {
					t.Error(err)
				}
				if _, err := d.StopProcess(t.Context(), spec.ProcessRef, driver.Stop{Grace: grace}); err != nil {
					t.Error(err)
				}
				if exit, err := d.Exec(t.Context(), shell(m, "sleep 600 & exit 3"), driver.Streams{}); err != nil || exit.Code != 3 {
					t.Errorf("%+v, %v", exit, err)
				}
			}
			if err := d.RemoveProcess(t.Context(), spec.ProcessRef); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for what, n := range totals(t) {
		if n >= before[what]+launches/2 {
			t.Errorf("%d %s, %d before", n, what, before[what])
		}
	}
	if left, _ := filepath.Glob(filepath.Join(h.state, "processes", "*", "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	remove(t, d)
}
