package nspawn_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// usage is what a machine's disk takes, in KiB.
func usage(t *testing.T, d driver.Disks, machine string) int64 {
	t.Helper()
	bytes, err := d.DiskUsage(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}
	return bytes >> 10
}

func TestDisk_UsageIsWhatWasWritten(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", `mkdir -p /w/deep/er; dd if=/dev/zero of=/w/deep/er/big bs=1M count=8
ln /w/deep/er/big /w/again; i=0; while [ $i -lt 600 ]; do echo x >/w/f$i; i=$((i+1)); done
dd if=/dev/zero of=/data/big bs=1M count=8; ln -s / /w/root; rm -rf /etc/*; echo ready; while :; do sleep 60; done`)
	spec.Volumes = []muster.VolumeMount{{Name: "data", Path: "/data"}}
	run(t, d, spec)
	await(t, d, spec.Machine, func(driver.Status) bool { return strings.Contains(h.console(spec.Machine), "ready\n") })
	const want = 8<<10 + 600*4
	if got := usage(t, d, spec.Machine); got < want || got > want+512 {
		t.Errorf("%d KiB, want about %d: 8 MiB with two names and 600 files, without what is in the volume", got, want)
	}
	if _, err := d.DiskUsage(t.Context(), h.prefix+"nosuch"); err == nil {
		t.Error("a machine that is not there has a disk")
	}
	remove(t, d)
	if err := d.RemoveVolume(t.Context(), "data"); err != nil {
		t.Error(err)
	}
}

func TestDisk_TheLimitBindsAndIsKept(t *testing.T) {
	h := newHost(t)
	d := h.open()
	if err := d.DiskLimits(t.Context()); err != nil {
		t.Fatal(err)
	}
	spec := h.spec("a", "dd if=/dev/zero of=/big bs=1M count=100; rm -f /big; echo kept >/kept; df -m / | tail -n 1; echo ready; while :; do sleep 60; done")
	spec.DiskLimitMB = 64
	run(t, d, spec)
	await(t, d, spec.Machine, func(driver.Status) bool { return strings.Contains(h.console(spec.Machine), "ready\n") })
	if text := h.console(spec.Machine); !strings.Contains(text, "No space left on device") {
		t.Errorf("100 MiB went into 64: %s", text)
	}
	if got := usage(t, d, spec.Machine); got > 12<<10 {
		t.Errorf("%d KiB are in use once the file is removed", got)
	}
	var file unix.Stat_t
	path := filepath.Join(h.state, "disks", spec.Disk, "limited.ext4")
	if err := unix.Stat(path, &file); err != nil || file.Size != 64<<20 {
		t.Errorf("the file has %d bytes, %v", file.Size, err)
	}
	for _, pid := range processes(h.prefix) { // as roughly as it can end
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	await(t, d, spec.Machine, exited)
	next := h.spec("a", "cat /kept; dd if=/dev/zero of=/big bs=1M count=100")
	next.Machine, next.Generation, next.DiskLimitMB = spec.Machine+"-2", 2, 64
	if _, err := d.Launch(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if m := await(t, d, next.Machine, exited); !strings.HasPrefix(m.Output, "kept\n") || !strings.Contains(m.Output, "No space left") {
		t.Errorf("the next generation ended as %+v", m)
	}
	remove(t, d)
}

// TestDisk_MoreLimitsThanDevices has more loop devices at a time than a kernel has to begin with.
func TestDisk_MoreLimitsThanDevices(t *testing.T) {
	h := newHost(t)
	d := h.open()
	const machines = 12
	for i := range machines {
		spec := h.spec(fmt.Sprintf("m%d", i), "df -m / | tail -n 1; echo ready; while :; do sleep 60; done")
		spec.DiskLimitMB = 32
		run(t, d, spec)
	}
	if got := loops(h.prefix); len(got) != machines {
		t.Errorf("%d loop devices for %d machines: %v", len(got), machines, got)
	}
	remove(t, d)
	if got := loops(h.prefix); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

func TestDisk_NoLimitWithoutMkfs(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "true")
	spec.DiskLimitMB = 64
	bin := t.TempDir()
	for _, name := range []string{"systemd-nspawn", "modprobe"} {
		if path, err := exec.LookPath(name); err == nil {
			if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", bin)
	if err := d.DiskLimits(t.Context()); err == nil || !strings.Contains(err.Error(), "e2fsprogs") {
		t.Errorf("limits without mkfs: %v", err)
	}
	if _, err := d.Launch(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "no disk can be limited") {
		t.Errorf("launch: %v, want it refused rather than without its limit", err)
	}
	spec.DiskLimitMB = 0
	if _, err := d.Launch(t.Context(), spec); err != nil {
		t.Error(err)
	}
	remove(t, d)
}

// TestDisk_InstallHasNoRoom: what does not fit is told so, and leaves nothing.
func TestDisk_InstallHasNoRoom(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "sleep 600")
	spec.DiskLimitMB = 32
	m := run(t, d, spec).Spec.Machine
	_, err := install(t, d, m, tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "large", Mode: 0o644, Linkname: strings.Repeat("x", 40<<20)}))
	if muster.CodeOf(err) != muster.Limit || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "no space left on device: free some space") {
		t.Errorf("%v (%s)", err, muster.CodeOf(err))
	}
	if left := within(t, d, m, "ls -A /opt/muster"); left != "" {
		t.Errorf("left: %q", left)
	}
	remove(t, d)
}
