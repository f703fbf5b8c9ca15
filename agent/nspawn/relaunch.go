package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/agent/image"
)

// Relaunch starts a machine that has Exited again: the same generation on its own disk, such as after the host has
// restarted. Its console goes on. ErrNotFound when it is not there, ErrExists when it lives. One that ctx
// ends is Exited as it was.
func (d *Driver) Relaunch(ctx context.Context, name string) (driver.Status, error) {
	if !isName(name) {
		return driver.Status{}, fmt.Errorf("%w: %.80q", driver.ErrNotFound, name)
	}
	unlock, err := d.keys.lock(ctx, name)
	if err != nil {
		return driver.Status{}, err
	}
	defer unlock()
	m := d.machine(name)
	status, err := d.settled(ctx, m)
	if err != nil {
		return driver.Status{}, err
	}
	if status.State != driver.Exited {
		return driver.Status{}, fmt.Errorf("%w and runs: %s", driver.ErrExists, name)
	}
	before, err := m.ending()
	if err != nil {
		return driver.Status{}, err
	}
	img, leave, err := d.enter(ctx, status.Spec)
	if err != nil {
		return driver.Status{}, err
	}
	defer leave()
	lock, err := d.renew(ctx, m, status, img)
	if err != nil {
		return driver.Status{}, fmt.Errorf("state of %s: %w", name, err)
	}
	if err := d.run(ctx, m, lock); err != nil {
		return driver.Status{}, errors.Join(err, d.undo(context.WithoutCancel(ctx), m, before))
	}
	status, _, err = observe(m)
	return status, err
}

// renew puts a machine that has ended down again. Until its ending is removed, last, it is as it was.
func (d *Driver) renew(ctx context.Context, m machine, status driver.Status, img image.Image) (*os.File, error) {
	r, err := d.plan(ctx, status.Spec, img)
	if err == nil {
		err = d.makeVolumes(status.Spec) // one that somebody deleted by hand
	}
	if err != nil {
		return nil, err
	}
	if before, err := m.record(); err == nil && status.Cut {
		r.Cuts = before.Cuts + 1
	}
	lock, err := m.tryLock()
	if err != nil {
		return nil, err
	}
	if lock == nil {
		return nil, fmt.Errorf("%w: somebody works on %s", driver.ErrExists, m.name)
	}
	err = m.write("machine.json", r)
	m.at(failpoint.RelaunchRecord)
	for _, file := range []string{"state.json", "stopping", "released", "exit.json"} {
		if err != nil {
			break
		}
		if err = os.Remove(m.path(file)); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	m.at(failpoint.RelaunchRenewed)
	return lock, nil
}

// undo ends what was begun of a machine and has it Exited as it was.
func (d *Driver) undo(ctx context.Context, m machine, before ending) error {
	r, err := m.record()
	if err != nil {
		return err
	}
	lock, err := d.seize(ctx, m, r)
	if err != nil {
		return err
	}
	return errors.Join(r.Group.Kill(), m.setEnding(before), m.letGo(r), lock.Close())
}
