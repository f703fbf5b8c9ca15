package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// A disk with a limit is an ext4 file system in a sparse file of that size, which the supervisor mounts by a loop device in
// its own mount namespace. The device clears itself when the last mount is gone, however that came about.

func (r record) limitFile() string  { return filepath.Join(r.Disk, "limited.ext4") }
func (r record) limitPoint() string { return filepath.Join(r.Disk, "limited") }

// layers is the directory that has what the payload writes.
func (r record) layers() string {
	if r.Spec.DiskLimitMB > 0 {
		return r.limitPoint()
	}
	return r.Disk
}

// DiskLimits says what the host lacks to limit disks, as an UNAVAILABLE error with the remedy.
func (d *Driver) DiskLimits(context.Context) error {
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		return muster.Errorf(muster.Unavailable, "no disk can be limited: mkfs.ext4 is not in PATH: apt-get install e2fsprogs")
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return muster.Errorf(muster.Unavailable, "no disk can be limited: there are no loop devices here: modprobe loop, as root and outside of a container: %w", err)
	}
	_ = control.Close()
	if !hasFilesystem("ext4") {
		return muster.Errorf(muster.Unavailable, "no disk can be limited: the kernel has no ext4: modprobe ext4")
	}
	return nil
}

// hasFilesystem looks for a file system in the kernel, loading its module if need be.
func hasFilesystem(name string) bool {
	has := func() bool {
		text, err := os.ReadFile("/proc/filesystems")
		return err == nil && strings.Contains(string(text), "\t"+name+"\n")
	}
	if has() {
		return true
	}
	_ = exec.Command("modprobe", name).Run() // it is looked for again
	return has()
}

// limit mounts the file system that a disk with a limit is, and makes it the first time.
func (r record) limit() error {
	if r.Spec.DiskLimitMB == 0 {
		return nil
	}
	if err := r.makeLimited(); err != nil {
		return fmt.Errorf("limit the disk: %w", err)
	}
	device, err := attach(r.limitFile())
	if err != nil {
		return fmt.Errorf("limit the disk: %w", err)
	}
	defer device.Close()
	if err := os.MkdirAll(r.limitPoint(), 0o700); err != nil {
		return err
	}
	// What is deleted inside is given back to the host.
	source := fmt.Sprintf("/proc/self/fd/%d", device.Fd())
	if err := unix.Mount(source, r.limitPoint(), "ext4", 0, "discard,noinit_itable"); err != nil {
		return fmt.Errorf("limit the disk: mount %s: %w", r.limitFile(), err)
	}
	return r.makeLayers()
}

// makeLayers makes the directories of the overlay.
func (r record) makeLayers() error {
	for _, name := range []string{"upper", "work"} {
		if err := os.MkdirAll(filepath.Join(r.layers(), name), 0o700); err != nil {
			return err
		}
	}
	return os.Chmod(filepath.Join(r.layers(), "upper"), 0o755) // it is the machine's /
}

// makeLimited makes the file system, whole or not at all.
func (r record) makeLimited() error {
	if exists(r.limitFile()) {
		return nil
	}
	unfinished := r.limitFile() + ".new"
	if err := os.WriteFile(unfinished, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(unfinished, int64(r.Spec.DiskLimitMB)<<20); err != nil {
		return err
	}
	out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=4", "-E", "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0", unfinished).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("mkfs.ext4 is not in PATH: apt-get install e2fsprogs")
	}
	if err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, lastLine(string(out)))
	}
	return os.Rename(unfinished, r.limitFile())
}

// attach returns a loop device that shows a file, and clears itself when nobody has it open or mounted any more.
func attach(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	// The lock goes with the open file, which the device keeps: until it is cleared, nobody can
	// mount the file system a second time.
	bounded, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := poll(bounded, func() (bool, error) { return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil, nil }); err != nil {
		return nil, fmt.Errorf("%s is still mounted", path)
	}
	for {
		device, err := freeLoop(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd())}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(config.Info.File_name[:], "muster")
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		_ = device.Close()
		if !errors.Is(err, unix.EBUSY) || bounded.Err() != nil { // busy: somebody else has just taken it
			return nil, fmt.Errorf("set up a loop device: %w", err)
		}
	}
}

// unlimit lets go of the file system.
func (r record) unlimit() error {
	if r.Spec.DiskLimitMB == 0 {
		return nil
	}
	return detach(r.limitPoint())
}

// awaitDetached waits a moment for the loop device to be cleared: the last of the machine's processes has just ended.
func (r record) awaitDetached(ctx context.Context) {
	if r.Spec.DiskLimitMB == 0 {
		return
	}
	file, err := os.Open(r.limitFile())
	if err != nil {
		return // it was never made
	}
	defer file.Close()
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// If not it is no harm: the device goes by itself, and has the deleted file until then.
	_ = poll(bounded, func() (bool, error) { return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil, nil })
}

// freeLoop opens a loop device that nobody uses. In a container that has no node for it one is made for the moment, in dir.
func freeLoop(dir string) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("no loop devices here: %w", err)
	}
	defer control.Close()
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("find a loop device: %w", err)
	}
	device, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return device, err
	}
	node := filepath.Join(dir, "loop")
	_ = os.Remove(node)
	const loopMajor = 7
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil {
		return nil, fmt.Errorf("make a node of loop device %d: %w", n, err)
	}
	defer os.Remove(node)
	return os.OpenFile(node, os.O_RDWR, 0)
}

// limitedUsage asks the file system of a disk with a limit, which is seen by way of the machine that runs on it.
func (m machine) limitedUsage(r record) (int64, error) {
	p, err := m.progress()
	if err != nil || !p.Leader.alive() {
		var info unix.Stat_t // of what is not mounted, the file tells: holes take nothing
		err := unix.Stat(r.limitFile(), &info)
		return info.Blocks * 512, err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(fmt.Sprintf("/proc/%d/root", p.Leader.PID), &disk); err != nil {
		return 0, err
	}
	return int64(disk.Blocks-disk.Bfree) * disk.Bsize, nil
}
