package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/driver"
)

const (
	// A walk over a disk works a tenth of the time: after each part it rests so many times what that took.
	walkRest = 9
	// walkPart is how many files one part is.
	walkPart = 256
	// walkDepth is how deep it goes, with a descriptor for each level; what is deeper is not counted.
	walkDepth = 256
	// walkLinks is of how many files with several links it remembers that they have been counted.
	walkLinks = 100_000
)

// DiskUsage returns what a machine's own disk takes. Of one with a limit that is what its file system says, at once;
// any other is walked over, slowly.
func (d *Driver) DiskUsage(ctx context.Context, name string) (int64, error) {
	if !isName(name) {
		return 0, fmt.Errorf("%w: %.80q", driver.ErrNotFound, name)
	}
	m := d.machine(name)
	r, err := m.record()
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: %s", driver.ErrNotFound, name)
	}
	if err != nil {
		return 0, err
	}
	if r.Spec.DiskLimitMB > 0 {
		return m.limitedUsage(r)
	}
	return usedBelow(ctx, filepath.Join(r.Disk, "upper"))
}

// usedBelow walks over a directory and returns what is below it takes, in bytes. Files that go meanwhile are no error.
func usedBelow(ctx context.Context, dir string) (int64, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	w := &walk{linked: map[uint64]struct{}{}, began: time.Now()}
	err = w.over(ctx, os.NewFile(uintptr(fd), dir), 0)
	return w.bytes, err
}

// walk adds up what files take.
type walk struct {
	bytes  int64
	device uint64 // that they are on: what is mounted somewhere is not theirs
	linked map[uint64]struct{}
	part   int
	began  time.Time // the part
}

// over adds what is in a directory, which it closes.
func (w *walk) over(ctx context.Context, dir *os.File, depth int) error {
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(walkPart) // never all of it at once: there can be millions
		for _, entry := range entries {
			if err := w.add(ctx, dir, entry.Name(), depth); err != nil {
				return err
			}
		}
		if err != nil { // the end, or somebody has just removed it
			if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return err
		}
	}
}

// add adds a file, and what is below it.
func (w *walk) add(ctx context.Context, dir *os.File, name string, depth int) error {
	if err := w.rest(ctx); err != nil {
		return err
	}
	var info unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &info, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil //nolint:nilerr // it has just gone
	}
	if w.device == 0 {
		w.device = info.Dev
	}
	if info.Dev != w.device || w.counted(&info) {
		return nil
	}
	w.bytes += info.Blocks * 512
	if info.Mode&unix.S_IFMT != unix.S_IFDIR || depth == walkDepth {
		return nil
	}
	// The payload works in there: a directory can have become a link.
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil //nolint:nilerr // it has just gone
	}
	return w.over(ctx, os.NewFile(uintptr(fd), name), depth+1)
}

// counted reports whether a file has been counted by another name, as far as is remembered.
func (w *walk) counted(info *unix.Stat_t) bool {
	if info.Nlink < 2 || info.Mode&unix.S_IFMT == unix.S_IFDIR {
		return false
	}
	if _, ok := w.linked[info.Ino]; ok {
		return true
	}
	if len(w.linked) < walkLinks {
		w.linked[info.Ino] = struct{}{}
	}
	return false
}

// rest makes a pause after each part, so that a large disk is no load.
func (w *walk) rest(ctx context.Context) error {
	if w.part++; w.part < walkPart {
		return nil
	}
	pause := time.NewTimer(walkRest * time.Since(w.began))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-pause.C:
	}
	w.part, w.began = 0, time.Now()
	return nil
}
