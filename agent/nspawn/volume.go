package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// bind is a directory or file of the host's that a machine sees.
type bind struct {
	Root     string `json:"root"` // without symbolic links; what may be seen at the most
	Rel      string `json:"rel"`  // below it
	At       string `json:"at"`   // inside
	ReadOnly bool   `json:"readOnly"`
}

func (d *Driver) volumesDir() string { return filepath.Join(d.opts.StateDir, "volumes") }

// HostPaths returns what machines are allowed of the host's files, sorted.
func (d *Driver) HostPaths() []string { return slices.Sorted(slices.Values(d.opts.HostPaths)) }

// Volumes returns the names of the volumes, sorted, also of one that is not deleted to the end.
func (d *Driver) Volumes(context.Context) ([]string, error) {
	entries, err := os.ReadDir(d.volumesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	names := []string{}
	for _, entry := range entries {
		name := strings.TrimPrefix(entry.Name(), gone)
		if entry.IsDir() && muster.CheckName("name", name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// RemoveVolume deletes a volume with all that is in it. One that ctx ends is still listed, and the next one goes on.
func (d *Driver) RemoveVolume(ctx context.Context, name string) error {
	if err := muster.CheckName("name", name); err != nil {
		return err
	}
	trash := filepath.Join(d.volumesDir(), gone+name)
	if err := deleteTree(ctx, trash); err != nil { // what an earlier one left
		return err
	}
	if err := d.discardVolume(name, trash); err != nil {
		return err
	}
	return deleteTree(ctx, trash) // a large one takes its time, in which others go on
}

// discardVolume moves a volume that no machine sees out of the way.
func (d *Driver) discardVolume(name, trash string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	path := filepath.Join(d.volumesDir(), name)
	if !exists(path) {
		return nil
	}
	all, _, err := d.statuses()
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.Spec.Uses(name) || m.Spec.Disk == "" { // nobody knows what one with a damaged record sees
			return fmt.Errorf("%w: %s", driver.ErrInUse, m.Spec.Machine)
		}
	}
	return os.Rename(path, trash)
}

// deleteTree deletes a directory, if it is there, until ctx ends.
func deleteTree(ctx context.Context, path string) error {
	root, err := os.OpenRoot(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	const levels = 3 // that are looked at on the way; what is deeper goes at once
	if err := errors.Join(empty(ctx, root, levels), root.Close()); err != nil {
		return err
	}
	return os.Remove(path)
}

// empty deletes what is in a directory.
func empty(ctx context.Context, root *os.Root, levels int) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(walkPart)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if err := remove(ctx, root, entry, levels); err != nil {
				return err
			}
		}
	}
}

// remove deletes an entry of a directory.
func remove(ctx context.Context, root *os.Root, entry fs.DirEntry, levels int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if entry.IsDir() && levels > 0 {
		sub, err := root.OpenRoot(entry.Name())
		if err != nil {
			return err
		}
		if err := errors.Join(empty(ctx, sub, levels-1), sub.Close()); err != nil {
			return err
		}
	}
	return root.RemoveAll(entry.Name())
}

// makeVolumes makes those volumes of a machine's that are not there yet. The caller has d.mu until the machine is put
// down, from when on none of them can be removed.
func (d *Driver) makeVolumes(spec driver.Spec) error {
	for _, v := range spec.Volumes {
		if v.Name == "" {
			continue
		}
		if err := os.MkdirAll(d.volumesDir(), 0o700); err != nil {
			return err
		}
		path := filepath.Join(d.volumesDir(), v.Name)
		err := os.Mkdir(path, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = os.Chmod(path, 0o755) // whatever the umask
		}
		if err != nil {
			return fmt.Errorf("make the volume %s: %w", v.Name, err)
		}
	}
	return nil
}

// binds returns what a machine sees of the host, or why it may not.
func (d *Driver) binds(spec driver.Spec) ([]bind, error) {
	state, err := filepath.EvalSymlinks(d.opts.StateDir)
	if err != nil {
		return nil, err
	}
	var all []bind
	for _, v := range spec.Volumes {
		b := bind{Root: filepath.Join(state, "volumes"), Rel: v.Name, At: v.Path, ReadOnly: v.ReadOnly}
		if v.Name == "" {
			if b.Root, b.Rel, err = d.allowed(v.HostPath); err != nil {
				return nil, err
			}
		}
		all = append(all, b)
	}
	return all, nil
}

// allowed looks whether a host path is in one that is allowed, also once all links have been
// followed, and returns that one and the path in it.
func (d *Driver) allowed(path string) (root, rel string, err error) {
	if !slices.ContainsFunc(d.opts.HostPaths, func(dir string) bool { return muster.Within(path, dir) }) {
		return "", "", muster.Errorf(muster.Forbidden, "the host path %s is not allowed on this node: start its agent with --allow-host-path %s, or use a named volume", path, path)
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", muster.Errorf(muster.NotFound, "the host path %s is not there: make it on the node", path)
	}
	if err != nil {
		return "", "", fmt.Errorf("the host path %s: %w", path, err)
	}
	for _, dir := range d.opts.HostPaths {
		root, err := filepath.EvalSymlinks(dir)
		if err != nil || !muster.Within(real, root) {
			continue
		}
		rel, err := filepath.Rel(root, real)
		return root, rel, err
	}
	return "", "", muster.Errorf(muster.Forbidden, "the host path %s leads to %s, which is not allowed on this node: start its agent with --allow-host-path %s, or remove the link", path, real, real)
}

// stagedAt is where the supervisor has a machine's n-th bind, for systemd-nspawn to take it from.
func stagedAt(n int) string { return filepath.Join(runtimeDir, "muster.volumes", strconv.Itoa(n)) }

// stage mounts what a machine sees in the supervisor's own mount namespace. Nothing between there and here
// follows a link: other machines can write in what is allowed, and exchange a directory for a link meanwhile.
func (r record) stage() error {
	for n, b := range r.Binds {
		if err := b.stage(stagedAt(n)); err != nil {
			return fmt.Errorf("mount %s at %s: %w", filepath.Join(b.Root, b.Rel), b.At, err)
		}
	}
	return nil
}

func (b bind) stage(target string) error {
	fd, err := b.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	if info.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.Mkdir(target, 0o700)
	} else {
		err = os.WriteFile(target, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), target, "", unix.MS_BIND|unix.MS_REC, "")
}

// open returns a descriptor that only serves to mount what it is of.
func (b bind) open() (int, error) {
	const flags = unix.O_PATH | unix.O_CLOEXEC
	dir, err := unix.Openat2(unix.AT_FDCWD, b.Root, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil || b.Rel == "." {
		return dir, err
	}
	defer unix.Close(dir)
	return unix.Openat2(dir, b.Rel, &unix.OpenHow{
		Flags: flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// bindArguments are those of systemd-nspawn that mount what was staged.
func (r record) bindArguments() []string {
	var args []string
	for n, b := range r.Binds {
		flag := "--bind="
		if b.ReadOnly {
			flag = "--bind-ro="
		}
		args = append(args, flag+stagedAt(n)+":"+strings.NewReplacer(`\`, `\\`, ":", `\:`).Replace(b.At))
	}
	return args
}
