package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-cloud/muster"
)

// unified is the key of the cgroup2 hierarchy, whose lines name no controller.
const unified = ""

// delegateSubgroup is the name of the group below the agent's unit that the agent itself is in, by DelegateSubgroup= or
// because it moved there: a group of cgroup2 cannot both have processes and hand controllers down, so that groups are made beside it.
const delegateSubgroup = "agent"

// controllers are what limits need.
func controllers() []string { return []string{"cpu", "memory", "pids"} }

// Own is where the process is in each hierarchy that matters.
type Own struct {
	dirs   map[string]string
	points map[string]mountPoint
	v2     bool
}

// Find reads the process's own groups from proc, a mounted procfs; empty means /proc.
// It is UNAVAILABLE when a controller that limits need is in no hierarchy, or not in the own group.
func Find(proc string) (*Own, error) {
	own, err := find(proc)
	if err != nil {
		return nil, err
	}
	if own.v2 {
		err = own.checkDelegation()
	}
	return own, err
}

// At returns the group of a path that counts from the roots of the hierarchies, as systemd tells it. It makes
// nothing. The errors are those of Find, but that the own group does not matter.
func At(proc, path string) (Group, error) {
	own, err := find(proc)
	if err != nil {
		return Group{}, err
	}
	g := Group{V2: own.v2, Base: own.points[unified].dir(filepath.Dir(path)), Dirs: map[string]string{}}
	for controller := range own.dirs {
		g.Dirs[controller] = own.points[controller].dir(path)
	}
	return g, nil
}

func find(proc string) (*Own, error) {
	own, err := locate(proc)
	if err != nil {
		return nil, err
	}
	return own, own.decide()
}

// locate reads where the process is, as it is.
func locate(proc string) (*Own, error) {
	if proc == "" {
		proc = "/proc"
	}
	// Whole files at once: read line by line, they change under the reader when the process moves.
	groups, err := os.ReadFile(filepath.Join(proc, "self/cgroup"))
	if err != nil {
		return nil, fmt.Errorf("own groups: %w", err)
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("mounts: %w", err)
	}
	own := &Own{dirs: map[string]string{}, points: mountPoints(string(mounts))}
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for _, controller := range strings.Split(fields[1], ",") {
			if point, ok := own.points[controller]; ok {
				own.dirs[controller] = point.dir(fields[2])
			}
		}
	}
	return own, nil
}

// decide between v1 (or hybrid) and v2, by where the controllers are.
func (o *Own) decide() error {
	need := controllers()
	has := func(controller string) bool { return o.dirs[controller] != "" }
	if slices.ContainsFunc(need, has) {
		for _, controller := range need {
			if !has(controller) {
				return muster.Errorf(muster.Unavailable, "the cgroup controller %s is mounted nowhere: mount it below /sys/fs/cgroup", controller)
			}
		}
		return nil
	}
	if !has(unified) {
		return muster.Errorf(muster.Unavailable, "no cgroup hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup")
	}
	o.v2 = true
	if filepath.Base(o.dirs[unified]) == delegateSubgroup {
		o.dirs[unified] = filepath.Dir(o.dirs[unified])
	}
	return nil
}

// checkDelegation looks whether groups below the own one can have limits.
func (o *Own) checkDelegation() error {
	text, err := os.ReadFile(filepath.Join(o.dirs[unified], "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("controllers of the own group: %w", err)
	}
	for _, controller := range controllers() {
		if !slices.Contains(strings.Fields(string(text)), controller) {
			return muster.Errorf(muster.Unavailable, "the agent's cgroup %s has no controller %s: run the agent as a unit with Delegate=yes", o.dirs[unified], controller)
		}
	}
	return nil
}

// Group returns a group below the own ones. It makes nothing.
func (o *Own) Group(name string) Group {
	g := Group{V2: o.v2, Base: o.dirs[unified], Dirs: map[string]string{}}
	for controller, dir := range o.dirs {
		g.Dirs[controller] = filepath.Join(dir, name)
	}
	return g
}

// Hasten makes the moves that follow quicker: the kernel's first one after a pause waits some milliseconds for
// readers of a lock, those soon after don't. It moves the process to where it is. On v2 it does nothing.
func (o *Own) Hasten() error {
	if o.v2 {
		return nil
	}
	return write(filepath.Join(o.dirs["pids"], "cgroup.procs"), strconv.Itoa(os.Getpid())) // any hierarchy: the lock is one
}

// MakeRoom moves the process into a group of its own below the one that it is in, so that this one can hand controllers
// down. It refuses when others are in that too: they are not the caller's to move. On v1 it does nothing.
func (o *Own) MakeRoom() error {
	if !o.v2 {
		return nil
	}
	dir, self := o.dirs[unified], strconv.Itoa(os.Getpid())
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("own group: %w", err)
	}
	for _, pid := range strings.Fields(string(text)) {
		if pid != self {
			return muster.Errorf(muster.Unavailable, "the agent's cgroup %s has other processes too, such as %s, so that it cannot hand its controllers down: run the agent as a unit of its own with Delegate=yes", dir, pid)
		}
	}
	return moveDown(dir, delegateSubgroup)
}

// moveDown moves the process into a group below one of cgroup2.
func moveDown(dir, name string) error {
	below := filepath.Join(dir, name)
	if err := os.MkdirAll(below, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	if err := write(filepath.Join(below, "cgroup.procs"), strconv.Itoa(os.Getpid())); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}

type mountPoint struct{ root, path string }

// dir translates a path of /proc/self/cgroup to the file system.
func (m mountPoint) dir(group string) string {
	if m.root != "/" {
		group = strings.TrimPrefix(group, m.root)
	}
	return filepath.Join(m.path, group)
}

// mountPoints returns where each hierarchy of interest is mounted first.
func mountPoints(mountinfo string) map[string]mountPoint {
	points := map[string]mountPoint{}
	note := func(controller string, point mountPoint) {
		if _, ok := points[controller]; !ok {
			points[controller] = point
		}
	}
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		mount, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(mount) < 5 || len(kind) < 3 {
			continue
		}
		point := mountPoint{root: mount[3], path: mount[4]}
		switch kind[0] {
		case "cgroup2":
			note(unified, point)
		case "cgroup":
			for _, option := range strings.Split(kind[2], ",") {
				if slices.Contains(controllers(), option) || option == "name=systemd" {
					note(option, point)
				}
			}
		}
	}
	return points
}
