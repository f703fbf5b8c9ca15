package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Pack writes the tree below a directory as a tar file, sorted, so that the same
// tree gives the same file. Devices, pipes and sockets are left out, and what is
// mounted in it. It returns how many were.
func Pack(ctx context.Context, to io.Writer, dir string) (left int, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, err
	}
	if !info.IsDir() {
		return 0, fmt.Errorf("%s is no directory", dir)
	}
	p := &packing{dir: dir, to: tar.NewWriter(to), device: statOf(info).Dev, links: map[inode]string{}}
	err = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || file == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return p.add(file, info)
	})
	if err != nil {
		return 0, fmt.Errorf("pack %s: %w", dir, err)
	}
	return p.left, p.to.Close()
}

type inode struct{ device, number uint64 }

type packing struct {
	dir    string
	to     *tar.Writer
	device uint64
	links  map[inode]string // files with several names, by where they are: the first name
	left   int
}

func statOf(info fs.FileInfo) *syscall.Stat_t {
	return info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // on Linux it is nothing else
}

func (p *packing) add(file string, info fs.FileInfo) error {
	name, err := filepath.Rel(p.dir, file)
	if err != nil {
		return err
	}
	stat := statOf(info)
	h := &tar.Header{
		Name: name, Mode: int64(stat.Mode & 0o7777), Uid: int(stat.Uid), Gid: int(stat.Gid),
		ModTime: moment(info.ModTime()), Format: tar.FormatPAX,
	}
	switch info.Mode().Type() {
	case 0:
		return p.addFile(file, h, stat)
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := p.to.WriteHeader(h); err != nil || stat.Dev == p.device {
			return err
		}
		p.left++
		return fs.SkipDir // something is mounted there
	case fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(file); err != nil {
			return err
		}
		return p.to.WriteHeader(h)
	}
	p.left++
	return nil
}

func (p *packing) addFile(file string, h *tar.Header, stat *syscall.Stat_t) (err error) {
	h.Typeflag = tar.TypeReg
	if at := (inode{stat.Dev, stat.Ino}); stat.Nlink > 1 {
		if first, ok := p.links[at]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return p.to.WriteHeader(h)
		}
		p.links[at] = h.Name
	}
	// Whatever took its place since: it is neither followed nor waited for.
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h.Size = stat.Size
	if h.PAXRecords, err = attributesOf(f); err != nil {
		return err
	}
	if err := p.to.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(p.to, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s became shorter while it was read: stop what writes to it", file)
	}
	return err
}

// attributesOf reads the extended attributes that an image keeps.
func attributesOf(f *os.File) (map[string]string, error) {
	names := make([]byte, 64<<10)
	n, err := unix.Flistxattr(int(f.Fd()), names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the attributes of %s: %w", f.Name(), err)
	}
	var out map[string]string
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		if !kept(name) {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", name, f.Name(), err)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[xattr+name] = string(value[:n])
	}
	return out, nil
}
