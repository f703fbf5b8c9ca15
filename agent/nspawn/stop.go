package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/failpoint"
)

// Stop asks the payload to stop: by SIGTERM, a booted image by its init's signal for power-off. After grace the
// machine's whole group is killed.
func (d *Driver) Stop(ctx context.Context, name string, grace time.Duration) (driver.Status, error) {
	unlock, err := d.keys.lock(ctx, name)
	if err != nil {
		return driver.Status{}, err
	}
	defer unlock()
	if !isName(name) {
		return driver.Status{}, fmt.Errorf("%w: %.80q", driver.ErrNotFound, name)
	}
	m := d.machine(name)
	status, err := d.settled(ctx, m)
	if err != nil || status.State == driver.Exited {
		return status, err
	}
	if err := d.stop(ctx, m, grace); err != nil {
		return driver.Status{}, err
	}
	status, _, err = observe(m)
	return status, err
}

func (d *Driver) stop(ctx context.Context, m machine, grace time.Duration) error {
	r, err := m.record()
	if err != nil {
		return err
	}
	if err := m.setStopping(); err != nil {
		return err
	}
	m.at(failpoint.StopNoted)
	graceful, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := d.ask(graceful, m, r); err == nil {
		m.at(failpoint.StopAsked)
		err = d.awaitEnd(graceful, m)
		if err == nil {
			m.at(failpoint.StopEnded)
			return d.recover(ctx, m) // in case the supervisor was killed meanwhile
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.at(failpoint.StopLate)
	lock, err := d.seize(ctx, m, r)
	if err != nil {
		return err
	}
	m.at(failpoint.StopSeized)
	if err := lock.Close(); err != nil {
		return err
	}
	return d.recover(ctx, m)
}

// ask tells the payload to stop, again until there is one to be told, or the machine has ended.
func (d *Driver) ask(ctx context.Context, m machine, r record) error {
	return poll(ctx, func() (bool, error) {
		held, err := m.held()
		if err != nil || !held {
			return true, err
		}
		p, err := m.progress()
		if err != nil {
			return false, nil //nolint:nilerr // it has not begun
		}
		return terminate(r, p.Leader)
	})
}

// awaitEnd returns when nobody has the machine's lock any more.
func (d *Driver) awaitEnd(ctx context.Context, m machine) error {
	err := poll(ctx, func() (bool, error) {
		held, err := m.held()
		return !held, err
	})
	if err == nil {
		d.reap(m)
	}
	return err
}

// seize kills what a machine runs and takes its lock. A supervisor that does not let go of it within 10 s
// is killed too.
func (d *Driver) seize(ctx context.Context, m machine, r record) (lock *os.File, err error) {
	deadline := time.Now().Add(10 * time.Second)
	late := false
	err = poll(ctx, func() (bool, error) {
		var err error
		if lock, err = m.tryLock(); err != nil || lock != nil {
			return true, err
		}
		if !late && time.Now().After(deadline) {
			late = true
			err = m.giveUp(ctx, r)
		}
		return false, errors.Join(err, m.kill(r, late))
	})
	if err != nil {
		return nil, err
	}
	d.reap(m)
	p, _ := m.progress() // none: there was no supervisor
	leaving, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	// It lets go of the lock just before it ends; its cgroup can be removed only then.
	_ = poll(leaving, func() (bool, error) { return !p.Supervisor.alive(), nil })
	return lock, nil
}

// kill ends what a machine runs. The supervisor of a unit, which is in the same group, is spared
// while it can tell how that ended, unless it is late.
func (m machine) kill(r record, late bool) error {
	if p, _ := m.progress(); r.Unit != "" && !late && p.Leader.PID != 0 && p.Supervisor.alive() {
		return errors.Join(p.Nspawn.signal(unix.SIGKILL), p.Leader.signal(unix.SIGKILL))
	}
	return r.Group.Kill()
}

// giveUp ends a supervisor that does not let go of the lock, or a unit that systemd has not begun with.
func (m machine) giveUp(ctx context.Context, r record) error {
	if r.Unit != "" {
		return stopUnit(ctx, r.Unit)
	}
	p, err := m.progress()
	if err != nil {
		return err
	}
	return p.Supervisor.signal(unix.SIGKILL)
}

// Remove kills a machine that runs and deletes everything of it.
func (d *Driver) Remove(ctx context.Context, name string) error {
	if !isName(name) {
		return nil
	}
	unlock, err := d.keys.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if !exists(d.machine(name).dir()) && !exists(d.machine(name).lockPath()) {
		return nil
	}
	if err := d.destroy(ctx, d.machine(name)); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// destroy ends a machine and removes everything of it; the caller has its turn. A record that cannot be
// read is no hindrance: but for its disk, everything has the machine's name.
func (d *Driver) destroy(ctx context.Context, m machine) error {
	r, err := m.record()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.opts.Logger.Error("removing a machine whose record is damaged; its disk stays", "machine", m.name, "err", err)
		r = record{Spec: driver.Spec{Machine: m.name, Addr: "unknown"}}
		if err := d.launcher(ctx).place(ctx, &r); err != nil {
			return err
		}
	}
	lock, err := d.seize(ctx, m, r)
	if err != nil {
		return err
	}
	m.at(failpoint.RemoveSeized)
	if err := errors.Join(r.Group.Kill(), m.release(r)); err != nil {
		return errors.Join(err, lock.Close())
	}
	r.awaitDetached(ctx)
	m.at(failpoint.RemoveReleased)
	if err := d.forgetServices(ctx, m.name); err != nil {
		return errors.Join(err, lock.Close())
	}
	return d.forget(m, r, lock)
}

// isName keeps what cannot be a machine's name away from paths.
func isName(name string) bool {
	return name != "" && !strings.HasPrefix(name, ".") && filepath.Base(name) == name
}

// poll calls fn until it returns true or an error, or ctx ends.
func poll(ctx context.Context, fn func() (bool, error)) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if done, err := fn(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
