package archive

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Unpack reads an archive and makes its tree in a directory that is there, is empty
// and nobody else writes to. Owners are set when root asks. The digest is that of
// the archive as it is: the tree's when it is in its canonical form. A *Refused error
// is the archive's fault. What was made before an error stays.
func Unpack(ctx context.Context, dir string, from io.Reader, limits Limits) (Summary, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Summary{}, err
	}
	defer root.Close()
	digest := sha256.New()
	r, err := open(from, limits, digest)
	if err != nil {
		return Summary{}, err
	}
	defer r.close()
	u := unpacking{reader: r, root: root, owners: os.Geteuid() == 0}
	for {
		entry, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = u.make(entry)
		}
		if err != nil {
			return Summary{}, err
		}
	}
	if err := u.finish(); err != nil {
		return Summary{}, err
	}
	r.sum.Digest = digestOf(digest)
	return r.sum, nil
}

// unpacking is a tree in the making. os.Root keeps it inside once more.
type unpacking struct {
	*reader
	root   *os.Root
	owners bool
	dirs   []*tar.Header // whose mode and time come last: what is made in them would change those
}

func (u *unpacking) make(e *tar.Header) error {
	name := strings.TrimSuffix(e.Name, "/")
	if parent := path.Dir(name); parent != "." {
		if err := u.root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	switch e.Typeflag {
	case tar.TypeDir:
		u.dirs = append(u.dirs, e)
		if err := u.root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return u.own(name, e)
	case tar.TypeSymlink:
		if err := u.root.Symlink(e.Linkname, name); err != nil {
			return err
		}
		return u.own(name, e)
	case tar.TypeLink:
		return u.root.Link(e.Linkname, name)
	}
	return u.file(name, e)
}

func (u *unpacking) own(name string, e *tar.Header) error {
	if !u.owners {
		return nil
	}
	return u.root.Lchown(name, e.Uid, e.Gid)
}

func (u *unpacking) file(name string, e *tar.Header) (err error) {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := u.copyContent(f, e); err != nil {
		return err
	}
	if u.owners { // before the mode: it takes set-user-id away
		if err := f.Chown(e.Uid, e.Gid); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(int(f.Fd()), uint32(e.Mode)); err != nil {
		return fmt.Errorf("set the mode of %s: %w", name, err)
	}
	for key, value := range e.PAXRecords {
		attribute := strings.TrimPrefix(key, xattr)
		if err := unix.Fsetxattr(int(f.Fd()), attribute, []byte(value), 0); err != nil && u.owners {
			return fmt.Errorf("set %s of %s: %w", attribute, name, err)
		}
	}
	return u.stamp(name, e.ModTime)
}

func (u *unpacking) stamp(name string, at time.Time) error { return u.root.Chtimes(name, at, at) }

// finish gives the directories their modes and times, the innermost first.
func (u *unpacking) finish() error {
	for _, e := range slices.Backward(u.dirs) {
		name := strings.TrimSuffix(e.Name, "/")
		if err := chmodDir(u.root, name, mode(e.Mode)); err != nil {
			return err
		}
		if err := u.stamp(name, e.ModTime); err != nil {
			return err
		}
	}
	return nil
}

// chmodDir changes the mode of a directory. Root.Chmod would need Linux 6.6.
func chmodDir(root *os.Root, name string, m fs.FileMode) error {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(m), f.Close())
}

// mode is a tar file's mode as Go writes it.
func mode(bits int64) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			m |= flag
		}
	}
	return m
}
