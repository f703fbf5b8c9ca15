package keyfile

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/renameio/v2"

	"github.com/muster-cloud/muster"
)

// maxSize bounds what is read, in bytes.
const maxSize = 1 << 20

// Read returns what is in a file. FORBIDDEN: others than its owner can read it. When it
// is not there the error is fs.ErrNotExist.
func Read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read a key file: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read a key file: %w", err)
	case !info.Mode().IsRegular():
		return nil, muster.Errorf(muster.Invalid, "%s is no file: a key is kept in one", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, muster.Errorf(muster.Forbidden, "%s can be read by others than its owner (mode %04o): run chmod 600 %s, and replace the key if somebody may have read it",
			path, info.Mode().Perm(), path)
	case info.Size() > maxSize:
		return nil, muster.Errorf(muster.Invalid, "%s has %d bytes: that is no key", path, info.Size())
	}
	text, err := io.ReadAll(io.LimitReader(file, maxSize))
	if err != nil {
		return nil, fmt.Errorf("read a key file: %w", err)
	}
	return text, nil
}

// Write replaces a file, or makes it, and returns once that would survive a power cut.
// The directory has to be there.
func Write(path string, text []byte) error {
	if err := write(path, text, nil); err != nil {
		return fmt.Errorf("write a key file: %w", err)
	}
	return nil
}

// Replace is Write for a file that is there, and stays its owner's: root can replace what a
// service reads that is not root's.
func Replace(path string, text []byte) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("replace a key file: %w", err)
	}
	var owner *syscall.Stat_t
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		owner = stat
	}
	if err := write(path, text, owner); err != nil {
		return fmt.Errorf("replace a key file: %w", err)
	}
	return nil
}

// write makes it this user's, or the owner's before anybody finds it by its name.
func write(path string, text []byte, owner *syscall.Stat_t) error {
	dir := filepath.Dir(path)
	// Not renameio.WriteFile: it would take over the mode of a file that others can read.
	file, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir), renameio.WithStaticPermissions(0o600), renameio.WithPermissions(0o600))
	if err != nil {
		return err
	}
	defer func() { _ = file.Cleanup() }()
	if _, err := file.Write(text); err != nil {
		return err
	}
	if owner != nil {
		if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	if err := file.CloseAtomicallyReplace(); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes a rename last: renameio syncs the file only.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return dir.Sync()
}
