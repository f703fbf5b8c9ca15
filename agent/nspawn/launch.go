package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/agent/image"
)

// Launch makes a machine and returns when its payload runs, or has ended. A launch that ctx ends leaves nothing.
func (d *Driver) Launch(ctx context.Context, spec driver.Spec) (driver.Status, error) {
	if err := spec.Validate(); err != nil {
		return driver.Status{}, err
	}
	unlock, err := d.keys.lock(ctx, spec.Machine)
	if err != nil {
		return driver.Status{}, err
	}
	defer unlock()
	img, leave, err := d.enter(ctx, spec)
	if err != nil {
		return driver.Status{}, err
	}
	defer leave()
	lock, predecessor, err := d.claim(ctx, spec, img)
	if err != nil {
		return driver.Status{}, err
	}
	m := d.machine(spec.Machine)
	if err := d.run(ctx, m, lock); err != nil {
		return driver.Status{}, errors.Join(err, d.destroy(context.WithoutCancel(ctx), m))
	}
	m.at(failpoint.LaunchTold)
	if predecessor != nil {
		if err := d.succeed(ctx, predecessor.Spec.Machine); err != nil { // it can still be removed
			d.opts.Logger.Error("a machine outlives its successor", "machine", predecessor.Spec.Machine, "err", err)
		}
		m.at(failpoint.LaunchSucceeded)
	}
	status, _, err := observe(m)
	return status, err
}

// enter waits for a launch's turn when the host can run it, and returns its image and what ends the turn.
func (d *Driver) enter(ctx context.Context, spec driver.Spec) (image.Image, func(), error) {
	if err := d.Check(ctx); err != nil {
		return image.Image{}, nil, err
	}
	img, err := d.images.Resolve(spec.Image, spec.ImageDigest)
	if err != nil {
		return image.Image{}, nil, err
	}
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return image.Image{}, nil, ctx.Err()
	}
	var early sync.WaitGroup
	early.Go(d.launcher(ctx).hasten)
	return img, func() {
		early.Wait()
		<-d.slots
	}, nil
}

// run starts a machine that is put down and waits for its payload to run or to have ended.
// It closes the lock, which the supervisor has by then.
func (d *Driver) run(ctx context.Context, m machine, lock *os.File) error {
	ready, err := d.start(ctx, m, lock)
	if err != nil {
		return err
	}
	defer ready.Close()
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, _ := ready.Read(make([]byte, 1))
	if n == 1 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// The supervisor has ended without a word: the payload has ended, or the supervisor was killed.
	if err := d.awaitEnd(ctx, m); err != nil {
		return err
	}
	return d.recover(ctx, m)
}

// start prepares everything outside of the state directory and runs the supervisor. It returns the
// pipe on which that says that the payload runs.
func (d *Driver) start(ctx context.Context, m machine, lock *os.File) (*os.File, error) {
	defer lock.Close()
	r, err := m.record()
	if err != nil {
		return nil, err
	}
	// Before the supervisor is started: its copy of the mounts has to have the network namespace.
	if addr, gateway, _ := r.Spec.Network(); addr.IsValid() { // it was validated
		if err := d.network.Add(m.name, addr, gateway); err != nil {
			return nil, err
		}
	}
	m.at(failpoint.LaunchNetwork)
	launcher := d.launcher(ctx)
	if err := launcher.prepare(r); err != nil {
		return nil, fmt.Errorf("cgroup of %s: %w", m.name, err)
	}
	m.at(failpoint.LaunchGroups)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ready, told, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer told.Close()
	child, err := launcher.start(ctx, m, r, handover{verb: verbRun, lock: lock, ready: told})
	if err != nil {
		return nil, errors.Join(err, ready.Close())
	}
	d.own(m, child)
	m.at(failpoint.LaunchSupervisor)
	return ready, nil
}

// succeed removes a machine whose disk another one has now.
func (d *Driver) succeed(ctx context.Context, name string) error {
	m := d.machine(name)
	r, err := m.record()
	if err != nil {
		return err
	}
	lock, err := m.tryLock()
	if err != nil || lock == nil { // somebody is just removing it
		return err
	}
	if !m.released() { // its supervisor was killed just before
		if err := m.letGo(r); err != nil {
			return errors.Join(err, lock.Close())
		}
	}
	if err := d.forgetServices(ctx, m.name); err != nil {
		return errors.Join(err, lock.Close())
	}
	return d.forget(m, r, lock)
}
