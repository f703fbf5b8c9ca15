package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a group in each hierarchy. It can be written down as JSON and used by
// another process.
type Group struct {
	Dirs map[string]string `json:"dirs"` // by controller; "" is cgroup2
	V2   bool              `json:"v2"`   // the controllers are in cgroup2
	Base string            `json:"base"` // the group in cgroup2 that this one is relative to
}

// all returns the directories, each once: v1 controllers may share a hierarchy.
func (g Group) all() []string {
	return slices.Compact(slices.Sorted(maps.Values(g.Dirs)))
}

// Create makes the group; it may be there.
func (g Group) Create() error {
	for _, dir := range g.all() {
		err := os.MkdirAll(dir, 0o755)
		for range 3 { // somebody else may just have removed a parent that was empty
			if !errors.Is(err, fs.ErrNotExist) {
				break
			}
			err = os.MkdirAll(dir, 0o755)
		}
		if err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	if !g.V2 {
		return nil
	}
	return g.delegate()
}

// delegate hands the controllers down to the group, level by level.
func (g Group) delegate() error {
	rel, err := filepath.Rel(g.Base, g.Dirs[unified])
	if err != nil {
		return err
	}
	dir := g.Base
	for _, part := range strings.Split(rel, string(filepath.Separator)) {
		err := write(filepath.Join(dir, "cgroup.subtree_control"), "+"+strings.Join(controllers(), " +"))
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("cgroup %s has processes of its own, so that its controllers cannot be handed down: run the agent as a unit of its own with Delegate=yes: %w", dir, err)
		}
		if err != nil {
			return err
		}
		dir = filepath.Join(dir, part)
	}
	return nil
}

// Parent returns the group that this one is in.
func (g Group) Parent() Group {
	up := Group{V2: g.V2, Base: g.Base, Dirs: map[string]string{}}
	for controller, dir := range g.Dirs {
		up.Dirs[controller] = filepath.Dir(dir)
	}
	return up
}

// Join moves a process into the group.
func (g Group) Join(pid int) error {
	for _, dir := range g.all() {
		if err := write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// StepAside moves the process, which is in the group, into one below of that name, so that the group can hand its controllers
// down to others below. On v1 it does nothing.
func (g Group) StepAside(name string) error {
	if !g.V2 {
		return nil
	}
	return moveDown(g.Dirs[unified], name)
}

// Has reports whether a process is in the group, or below it, in every hierarchy that has a limit.
func (g Group) Has(pid int) (bool, error) {
	for _, dir := range g.limited() {
		pids, err := procs(dir)
		if err != nil {
			return false, err
		}
		if !slices.Contains(pids, pid) {
			return false, nil
		}
	}
	return true, nil
}

// Processes returns the processes in the group and below it; none when it is not there.
func (g Group) Processes() ([]int, error) {
	var pids []int
	for _, dir := range g.all() {
		more, err := procs(dir)
		if err != nil {
			return nil, err
		}
		pids = append(pids, more...)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// limited returns the directories of the hierarchies that have the controllers.
func (g Group) limited() []string {
	if g.V2 {
		return []string{g.Dirs[unified]}
	}
	var dirs []string
	for _, controller := range controllers() {
		dirs = append(dirs, g.Dirs[controller])
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// Kill ends every process of the group but the caller's and waits until none is left, 5 s at most.
// A group that is not there has none.
func (g Group) Kill() error {
	self := os.Getpid()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		all, err := g.Processes()
		if err != nil {
			return err
		}
		others := slices.DeleteFunc(slices.Clone(all), func(pid int) bool { return pid == self })
		if len(others) == 0 {
			return nil
		}
		if dir, ok := g.Dirs[unified]; ok && len(others) == len(all) {
			_ = write(filepath.Join(dir, "cgroup.kill"), "1") // since Linux 5.14; what it misses is killed below
		}
		for _, pid := range others {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of cgroup %s do not end", others, g.all()[0])
		}
	}
}

// Remove removes the group with what is below it, waiting 2 s at most for processes that
// are ending. One that is not there is no error.
func (g Group) Remove() error {
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var errs []error
		for _, dir := range g.all() {
			errs = append(errs, removeTree(dir))
		}
		err := errors.Join(errs...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// RemoveEmpty removes the group where it is empty and leaves it where it is in use.
func (g Group) RemoveEmpty() {
	for _, dir := range g.all() {
		_ = unix.Rmdir(dir)
	}
}

func removeTree(dir string) error {
	dirs, err := tree(dir)
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// tree returns a directory and those below it, parents first.
func tree(dir string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	return dirs, err
}

func procs(dir string) ([]int, error) {
	dirs, err := tree(dir)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", dir, err)
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// write writes a control file, which has to be there.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
