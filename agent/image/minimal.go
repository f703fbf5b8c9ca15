package image

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
)

// Minimal is the name of the image that BuildMinimal makes.
const Minimal = "minimal"

// idleInit is the minimal image's init: it idles, reaps what it is left with, and
// exits with status 0 on SIGTERM.
const idleInit = `#!/bin/sh
trap 'exit 0' TERM INT
while :; do
	sleep 3600 &
	wait $!
done
`

// BuildMinimal makes the image "minimal" from a static busybox, about 2 MB:
// its applets, an idle init, /etc/os-release and the like. An empty path means
// the busybox in PATH. ALREADY_EXISTS when the image is there.
func (s *Store) BuildMinimal(ctx context.Context, busybox string) (Image, error) {
	if img, err := s.Find(Minimal); err == nil {
		return Image{}, alreadyThere(img)
	}
	busybox, err := FindBusybox(busybox)
	if err != nil {
		return Image{}, err
	}
	out, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return Image{}, fmt.Errorf("list the applets of %s: %w", busybox, errors.Join(ctx.Err(), err))
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return Image{}, fmt.Errorf("image store: %w", err)
	}
	tmp, err := os.MkdirTemp(s.dir, ".making-")
	if err != nil {
		return Image{}, fmt.Errorf("image store: %w", err)
	}
	defer os.RemoveAll(tmp) // gone by then when it was published
	if err := writeMinimal(tmp, busybox, strings.Fields(string(out))); err != nil {
		return Image{}, fmt.Errorf("make image %s: %w", Minimal, err)
	}
	if err := ctx.Err(); err != nil {
		return Image{}, err
	}
	return s.publish(tmp, Image{Name: Minimal, Source: busybox, Created: time.Now().UTC().Truncate(time.Second)})
}

// FindBusybox returns the absolute path of the busybox that BuildMinimal takes for
// a path. UNAVAILABLE or INVALID, with the remedy: there is none, or it is not static.
func FindBusybox(path string) (string, error) {
	const remedy = "install busybox-static (apt-get install busybox-static), or name another static busybox"
	if path == "" {
		found, err := exec.LookPath("busybox")
		if err != nil {
			return "", muster.Errorf(muster.Unavailable, "no busybox in PATH: %s", remedy)
		}
		path = found
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", muster.Errorf(muster.Invalid, "%s is no busybox: %w: %s", path, err, remedy)
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return "", muster.Errorf(muster.Invalid, "%s is linked dynamically: %s", path, remedy)
	}
	return path, nil
}

func writeMinimal(root, busybox string, applets []string) error {
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{"bin", "dev", "etc", "proc", "root", "run", "sbin", "sys", "tmp", "usr/bin", "usr/lib", "usr/sbin", "var/log"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), fs.ModeSticky|0o777); err != nil {
		return err
	}
	if err := copyFile(busybox, filepath.Join(root, "bin/busybox")); err != nil {
		return err
	}
	for _, applet := range applets {
		if applet == "busybox" || applet == "init" || strings.ContainsRune(applet, '/') {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil {
			return err
		}
	}
	return writeFiles(root)
}

func writeFiles(root string) error {
	for path, text := range map[string]string{
		"usr/lib/os-release": "ID=muster-minimal\nNAME=\"muster minimal\"\nPRETTY_NAME=\"muster minimal (busybox)\"\n",
		"etc/passwd":         "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"etc/group":          "root:x:0:\nnogroup:x:65534:\n",
		"etc/hosts":          "127.0.0.1 localhost\n::1 localhost\n",
	} {
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.Symlink("../usr/lib/os-release", filepath.Join(root, "etc/os-release")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "sbin/init"), []byte(idleInit), 0o755)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
