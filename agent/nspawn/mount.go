package nspawn

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// runtimeDir is where systemd-nspawn keeps locks and sockets. Each supervisor has one of its own, so that none of
// it is left, however the machine ends.
const runtimeDir = "/run/systemd/nspawn"

// mount makes the root in the supervisor's own mount namespace: an overlay on the image.
func (m machine) mount(r record) error {
	// What the host unmounts shall be unmounted in here too, and nothing of this shall be seen outside.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mounts slaves: %w", err)
	}
	if err := os.MkdirAll(runtimeDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("muster", runtimeDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=4m"); err != nil {
		return fmt.Errorf("mount %s: %w", runtimeDir, err)
	}
	if err := errors.Join(r.stage(), r.limit()); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", r.Root, r.layers(), r.layers())
	deadline := time.Now().Add(2 * time.Second)
	for {
		err := unix.Mount("muster", m.path("root"), "overlay", 0, options)
		if err == nil {
			return nil
		}
		// Busy: the previous generation's mount is just going away.
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("mount an overlay on %s: %w; the state directory has to be on a real file system, such as ext4 or xfs, not on an overlay", r.Root, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// unmount lets go of the disk before the lock does, so that the next generation finds it free.
func (m machine) unmount(r record) error {
	return errors.Join(detach(m.path("root")), r.unlimit())
}

// detach unmounts what may be mounted somewhere.
func detach(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // it is not mounted
		return nil
	}
	return err
}
