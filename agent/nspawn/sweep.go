package nspawn

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// Names with these prefixes are not machines yet, or no more: a crash can leave them.
	making = ".new-"
	gone   = ".gone-"
	// unowned is a file beside what a payload writes, until the machine of a fresh disk is put down.
	unowned = "unowned"
)

// markUnowned makes the directory of a disk that no machine has yet.
func markUnowned(disk string) error {
	if err := os.MkdirAll(disk, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(disk, unowned), nil, 0o600)
}

// markOwned notes that a machine has the disk.
func markOwned(disk string) error {
	err := os.Remove(filepath.Join(disk, unowned))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sweep removes, once, what a crash left of machines that were being put down or removed.
func (d *Driver) sweep() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sweepLocked()
}

func (d *Driver) sweepLocked() error {
	if d.swept {
		return nil
	}
	for _, pattern := range []string{"machines/" + making, "machines/" + gone, "disks/" + gone} {
		paths, err := filepath.Glob(filepath.Join(d.opts.StateDir, pattern+"*"))
		if err != nil {
			return err
		}
		for _, path := range paths {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(d.sweepLocks(), d.sweepDisks()); err != nil {
		return err
	}
	d.swept = true
	return nil
}

// sweepLocks removes the locks that no machine has.
func (d *Driver) sweepLocks() error {
	entries, err := os.ReadDir(filepath.Join(d.opts.StateDir, "locks"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		m := d.machine(entry.Name())
		if exists(m.dir()) {
			continue
		}
		lock, err := m.tryLock()
		if err != nil {
			return err
		}
		if lock == nil { // somebody is just removing the machine
			continue
		}
		if err := errors.Join(os.Remove(m.lockPath()), lock.Close()); err != nil {
			return err
		}
	}
	return nil
}

// sweepDisks removes the fresh disks whose machines were not put down. Others that no machine has are
// of machines whose records were damaged, and stay.
func (d *Driver) sweepDisks() error {
	marks, err := filepath.Glob(filepath.Join(d.opts.StateDir, "disks", "*", unowned))
	if err != nil || len(marks) == 0 {
		return err
	}
	names, err := d.names()
	if err != nil {
		return err
	}
	owned := map[string]bool{}
	for _, name := range names {
		if r, err := d.machine(name).record(); err == nil { // a damaged one was put down with a disk long ago
			owned[r.Disk] = true
		}
	}
	for _, mark := range marks {
		remove := os.RemoveAll
		if owned[filepath.Dir(mark)] {
			remove = markOwned
		}
		if err := remove(filepath.Dir(mark)); err != nil {
			return err
		}
	}
	return nil
}
