package nspawn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
	"github.com/muster-cloud/muster/archive"
)

// verbInstall unpacks its standard input in a machine.
const verbInstall = "install"

// unpackInside is the process that unpacks one artifact in a machine.
func unpackInside() error {
	given := os.NewFile(orderFD, "order")
	tells := os.NewFile(controlFD, "news")
	defer tells.Close()
	var o installOrder
	if err := errors.Join(json.NewDecoder(given).Decode(&o), given.Close()); err != nil {
		return err
	}
	// Rather this than a service, when both are too much for the instance. Raising it needs no privilege.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM) // so that nothing half done is left
	defer stop()
	var news installNews
	err := o.enter(func() (err error) {
		if o.Gone {
			return errors.Join(os.RemoveAll(o.place()), os.RemoveAll(o.aside()))
		}
		news.Installed, err = o.install(ctx, os.Stdin)
		return err
	})
	refused, bad := errors.AsType[*archive.Refused](err)
	unfit, wrong := errors.AsType[unfitError](err)
	switch {
	case bad:
		news.Refused = refused.Error()
	case wrong:
		news.Refused = unfit.Error()
	case err != nil:
		news.Failed, news.Full = err.Error(), errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	}
	return json.NewEncoder(tells).Encode(news)
}

// unfitError is why an artifact that is no archive cannot be used, and what to do.
type unfitError string

// Error returns it.
func (e unfitError) Error() string { return string(e) }

// enter runs fn in the machine and within its limits.
func (o *installOrder) enter(fn func() error) error {
	here, err := cgroup.Here()
	if err != nil {
		return err
	}
	if err := errors.Join(o.Group.Create(), o.Group.Join(os.Getpid())); err != nil {
		return err
	}
	err = inside(o.Leader, fn)
	return errors.Join(err, here.Join(os.Getpid()), o.Group.Remove())
}

func (o *installOrder) place() string { return path.Join(driver.ArtifactsDir, o.Name) }

func (o *installOrder) aside() string { return path.Join(driver.ArtifactsDir, ".new-"+o.Name) }

// install unpacks beside its place, and then puts it there.
func (o *installOrder) install(ctx context.Context, from io.Reader) (done driver.Installed, err error) {
	place, made := o.place(), o.aside()
	if err := os.RemoveAll(made); err != nil { // of one that was killed
		return done, err
	}
	if err := os.MkdirAll(made, 0o755); err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(made)) }()
	if done, err = o.unpack(ctx, made, whileWanted(ctx, from)); err != nil {
		return done, err
	}
	done.Dir = place
	if done.Executable != "" {
		done.Executable = path.Join(place, done.Executable)
	}
	return done, exchange(made, place)
}

// reader is a Read as a function.
type reader func(p []byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

// whileWanted ends a reader with a context.
func whileWanted(ctx context.Context, from io.Reader) io.Reader {
	return reader(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return from.Read(p)
	})
}

// exchange puts a directory in the place of what is there, which comes in its own place.
func exchange(made, place string) error {
	err := unix.Renameat2(unix.AT_FDCWD, made, unix.AT_FDCWD, place, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) {
		err = os.Rename(made, place)
	}
	return err
}

// unpack makes what the artifact is in an empty directory.
func (o *installOrder) unpack(ctx context.Context, dir string, from io.Reader) (done driver.Installed, err error) {
	start := make([]byte, 262)
	n, err := io.ReadFull(from, start)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return done, err
	}
	start = start[:n]
	content := io.MultiReader(bytes.NewReader(start), from)
	if bytes.HasPrefix(start, []byte("\x7fELF")) || bytes.HasPrefix(start, []byte("#!")) {
		return o.executable(dir, content)
	}
	if !isArchive(start) {
		return done, unfitError("what came is no artifact: give a tar file, plain or compressed by gzip or zstd, or one executable, which is an ELF file or a script that begins with #!")
	}
	sum, err := archive.Unpack(ctx, dir, content, archive.Limits{Upload: o.Unpacked, Unpacked: o.Unpacked, Entries: o.Entries, Fixed: true})
	if err != nil {
		return done, err
	}
	done.Unpacked, done.Entries = sum.Unpacked, sum.Entries
	return done, tame(dir)
}

func isArchive(start []byte) bool {
	for _, magic := range []string{"\x1f\x8b", "\x28\xb5\x2f\xfd", "\xfd7zXZ", "BZh"} { // the last two are refused with what to do
		if bytes.HasPrefix(start, []byte(magic)) {
			return true
		}
	}
	return len(start) == 262 && string(start[257:262]) == "ustar"
}

// executable writes the artifact as one file.
func (o *installOrder) executable(dir string, content io.Reader) (done driver.Installed, err error) {
	f, err := os.OpenFile(path.Join(dir, o.FileName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	n, err := io.Copy(f, io.LimitReader(content, o.Unpacked+1))
	if err == nil && n > o.Unpacked {
		err = unfitError(fmt.Sprintf("the executable has more than %d bytes: make it smaller", o.Unpacked))
	}
	return driver.Installed{Executable: o.FileName, Unpacked: n, Entries: 1}, err
}

// tame makes all that was unpacked root's, readable to everybody and to be written by nobody else, and refuses links that
// lead out of it.
func tame(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := root.Lchown(name, 0, 0); err != nil {
			return err
		}
		if entry.Type() == fs.ModeSymlink {
			target, err := root.Readlink(name)
			if err == nil && strings.HasPrefix(target, "/") {
				return &archive.Refused{Entry: name, Why: fmt.Sprintf("is a link to %.300q, out of the artifact: make it relative, or leave it out", target)}
			}
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm()&^0o022 | 0o444
		if info.IsDir() || mode&0o111 != 0 {
			mode |= 0o111
		}
		return chmod(root, name, mode)
	})
}

// chmod changes the mode of a file or directory. Root.Chmod would need Linux 6.6.
func chmod(root *os.Root, name string, mode fs.FileMode) error {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Close())
}
