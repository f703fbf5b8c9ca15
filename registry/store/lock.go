package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// lockName is the file whose lock means: this process has the data directory.
// It is never removed, or a lock could be held on a file that nobody else sees.
const lockName = "muster.lock"

// claim makes dir if it is missing and locks it. Closing the file unlocks it,
// and so does the end of the process.
func claim(dir string) (*os.File, error) {
	if dir == "" {
		return nil, muster.Errorf(muster.Invalid, "the data directory has no name: give one with --data-dir")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, muster.Errorf(muster.Invalid,
			"the data directory %s cannot be made: %w; give another --data-dir, or make it and let this user write to it", dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, muster.Errorf(muster.Invalid,
			"the data directory %s cannot be written: %w; let this user write to it, or give another --data-dir", dir, err)
	}
	if err := lock(f, dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func lock(f *os.File, dir string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return muster.Errorf(muster.Conflict,
			"the data directory %s is in use by %s: stop that server, or give another --data-dir", dir, holder(f))
	}
	if err != nil {
		return muster.Errorf(muster.Invalid, "the data directory %s cannot be locked: %w; give another --data-dir", dir, err)
	}
	// The pid is for people, and the lock is what counts: without space for the
	// pid, the message about it is just less helpful.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	}
	return nil
}

func holder(f *os.File) string {
	b, err := io.ReadAll(io.LimitReader(f, 32))
	pid := strings.TrimSpace(string(b))
	if err != nil || pid == "" {
		return "another muster server"
	}
	return "another muster server (pid " + pid + ")"
}
