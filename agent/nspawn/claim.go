package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// claim puts a machine down when neither it nor a live one of its disk is there. It returns
// its lock, and the machine whose disk it takes over, if any.
func (d *Driver) claim(ctx context.Context, spec driver.Spec, img image.Image) (*os.File, *driver.Status, error) {
	r, err := d.plan(ctx, spec, img)
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.sweepLocked(); err != nil {
		return nil, nil, err
	}
	all, _, err := d.statuses()
	if err != nil {
		return nil, nil, err
	}
	predecessor, err := spec.Predecessor(all)
	if err != nil {
		return nil, nil, err
	}
	if err := d.makeVolumes(spec); err != nil {
		return nil, nil, err
	}
	lock, err := d.put(d.machine(spec.Machine), r, predecessor == nil)
	if err != nil {
		return nil, nil, fmt.Errorf("state of %s: %w", spec.Machine, err)
	}
	return lock, predecessor, nil
}

// plan returns what to write down of a launch.
func (d *Driver) plan(ctx context.Context, spec driver.Spec, img image.Image) (record, error) {
	boot, err := hostBoot()
	if err != nil {
		return record{}, err
	}
	r := record{
		Spec:         spec,
		Root:         img.Path,
		Disk:         filepath.Join(d.opts.StateDir, "disks", spec.Disk),
		Limits:       cgroup.Limits{CPUPercent: spec.CPUPercent, MemoryMB: spec.MemoryMB, Processes: d.opts.Processes},
		StartTimeout: d.opts.StartTimeout,
		HostBoot:     boot,
	}
	if spec.DiskLimitMB > 0 {
		if err := d.DiskLimits(ctx); err != nil {
			return record{}, err
		}
	}
	if r.Binds, err = d.binds(spec); err != nil {
		return record{}, err
	}
	if spec.Addr != "" {
		if r.ResolvConf, err = d.Resolver(); err != nil {
			return record{}, err
		}
	}
	r.Command, r.Boot = payload(spec, img)
	if r.StartTimeout == 0 {
		r.StartTimeout = 30 * time.Second
		if r.Boot {
			r.StartTimeout = 2 * time.Minute
		}
	}
	return r, d.launcher(ctx).place(ctx, &r)
}

// put makes a machine's disk, lock and directory. The directory appears whole, and last.
func (d *Driver) put(m machine, r record, fresh bool) (*os.File, error) {
	if fresh { // what is there belongs to no machine: a crash left it
		if err := os.RemoveAll(r.Disk); err != nil {
			return nil, err
		}
		if err := markUnowned(r.Disk); err != nil {
			return nil, err
		}
	}
	tmp := machine{state: m.state, name: making + m.name}
	if err := os.RemoveAll(tmp.dir()); err != nil {
		return nil, err
	}
	for _, dir := range []string{tmp.path("root"), filepath.Dir(m.lockPath()), r.Disk} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if r.Spec.DiskLimitMB == 0 { // else the supervisor does, on the file system that it mounts
		if err := r.makeLayers(); err != nil {
			return nil, err
		}
	}
	m.at(failpoint.LaunchDisk)
	if err := tmp.write("machine.json", r); err != nil {
		return nil, err
	}
	m.at(failpoint.LaunchRecord)
	lock, err := m.tryLock()
	if err != nil {
		return nil, err
	}
	if lock == nil {
		return nil, fmt.Errorf("%w: %s is being removed", driver.ErrExists, m.name)
	}
	m.at(failpoint.LaunchLock)
	if err := os.Rename(tmp.dir(), m.dir()); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	m.at(failpoint.LaunchPutDown)
	_ = markOwned(r.Disk) // a mark that stays is seen to belong to a machine's disk
	return lock, nil
}

// forget removes the files of a machine that has ended: its disk, unless another machine has it, its
// directory and its lock, which it closes. With the last machine goes what all share.
func (d *Driver) forget(m machine, r record, lock *os.File) error {
	d.mu.Lock()
	trash, err := d.discardLocked(m, r)
	d.mu.Unlock()
	for _, path := range trash { // a large disk takes its time, in which others go on
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	m.at(failpoint.RemoveDeleted)
	err = os.Remove(m.lockPath())
	m.at(failpoint.RemoveUnlocked)
	return errors.Join(err, lock.Close())
}

// discardLocked moves a machine's files out of the way and returns what is to be removed.
func (d *Driver) discardLocked(m machine, r record) (trash []string, err error) {
	all, _, err := d.statuses()
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(all, func(s driver.Status) bool { return s.Spec.Machine == m.name })
	if len(others) == 0 {
		if err := d.network.Clear(); err != nil {
			return nil, err
		}
		if r.Unit == "" { // a slice is the host's
			direct{opts: d.opts}.clear(r)
		}
	}
	m.at(failpoint.RemoveShared)
	paths := []string{m.dir()}
	if r.Disk != "" && !slices.ContainsFunc(others, func(s driver.Status) bool { return s.Spec.Disk == r.Spec.Disk }) {
		paths = []string{r.Disk, m.dir()} // the directory last: until then the machine is listed
	}
	for _, path := range paths {
		to := filepath.Join(filepath.Dir(path), gone+filepath.Base(path))
		err := os.Rename(path, to)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return trash, err
		}
		trash = append(trash, to)
		if path == m.dir() {
			m.at(failpoint.RemoveDirectory)
		} else {
			m.at(failpoint.RemoveDisk)
		}
	}
	return trash, nil
}

func (d *Driver) machine(name string) machine {
	return machine{state: d.opts.StateDir, name: name, reached: d.opts.Reached}
}

// names returns the machines that are put down.
func (d *Driver) names() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(d.opts.StateDir, "machines"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}
