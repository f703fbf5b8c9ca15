package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/muster-cloud/muster/agent/driver"
)

// List returns the machines, sorted by name. One that has lost its supervisor is adopted by a new
// one when its payload still runs, else it is Exited from then on.
func (d *Driver) List(ctx context.Context) ([]driver.Status, error) {
	if err := d.sweep(); err != nil { // it is no harm but to the disk's space
		d.opts.Logger.Error("what a crash left cannot be removed", "err", err)
	}
	all, lost, err := d.statuses()
	if err != nil || len(lost) == 0 {
		return all, err
	}
	for _, name := range lost {
		err := d.recoverNamed(ctx, name)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil { // the others are no worse for it, and the next List tries again
			d.opts.Logger.Error("a machine has lost its supervisor", "machine", name, "err", err)
		}
	}
	all, _, err = d.statuses()
	return all, err
}

func (d *Driver) recoverNamed(ctx context.Context, name string) error {
	unlock, err := d.keys.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	return d.recover(ctx, d.machine(name))
}

// settled returns a machine's status once it has a supervisor or has ended. The caller has its turn.
func (d *Driver) settled(ctx context.Context, m machine) (driver.Status, error) {
	status, lost, err := observe(m)
	if err != nil || !lost {
		return status, err
	}
	if err := d.recover(ctx, m); err != nil {
		return driver.Status{}, err
	}
	status, _, err = observe(m)
	return status, err
}

// statuses returns the machines as they are, and which of them have lost their supervisor.
func (d *Driver) statuses() (all []driver.Status, lost []string, err error) {
	names, err := d.names()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		status, alone, err := observe(d.machine(name))
		if errors.Is(err, driver.ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, nil, fmt.Errorf("machine %s: %w", name, err)
		}
		all = append(all, status)
		if alone {
			lost = append(lost, name)
		}
	}
	return all, lost, nil
}

// observe reads a machine's status, and whether it has lost its supervisor before that was through with it.
func observe(m machine) (s driver.Status, lost bool, err error) {
	r, err := m.record()
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, fmt.Errorf("%w: %s", driver.ErrNotFound, m.name)
	}
	if err != nil { // it is shown, so that it can be removed
		return driver.Status{Spec: driver.Spec{Machine: m.name}, State: driver.Exited, Reason: "its record is damaged: " + err.Error()}, false, nil
	}
	held, err := m.held() // before its ending is looked for: that is written before the lock is let go
	if err != nil {
		return s, false, err
	}
	p, _ := m.progress() // none, or half of one after a power failure: nothing is known to run
	s = driver.Status{Spec: r.Spec, State: driver.Preparing, Started: p.Started}
	if p.Running {
		s.State, s.PID = driver.Running, p.Leader.PID
	}
	if held {
		return s, false, nil
	}
	e, err := m.ending()
	if errors.Is(err, fs.ErrNotExist) {
		return s, true, nil
	}
	if err != nil {
		e = ending{Reason: "ended, but how is damaged: " + err.Error()}
	}
	s.State, s.PID, s.ExitCode = driver.Exited, 0, e.Code
	s.Reason, s.OOM, s.Cut, s.Ended = e.Reason, e.OOM, e.Cut, e.Ended
	s.Output, err = m.output()
	return s, !m.released(), err
}

// recover gives a machine that has lost its supervisor a new one, or finishes it. The caller has its turn.
func (d *Driver) recover(ctx context.Context, m machine) error {
	lock, err := m.tryLock()
	if err != nil || lock == nil {
		return err
	}
	defer lock.Close()
	r, err := m.record()
	if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
		return os.Remove(m.lockPath())
	}
	if err != nil {
		return err
	}
	if exists(m.path("exit.json")) {
		if m.released() {
			return nil
		}
		return m.letGo(r)
	}
	d.reap(m)
	p, _ := m.progress() // as in observe
	boot, err := hostBoot()
	if err != nil {
		return err
	}
	res := result{ready: true, running: p.Running}
	switch {
	case boot != r.HostBoot:
		res.reason = hostRestarted
	case !p.Running:
		res.cut, res.failure = true, "its launch was interrupted"
		if log, _ := os.ReadFile(m.path("supervisor.log")); len(log) > 0 { // none: it had nothing to say
			res.failure += ": " + lastLine(string(log))
		}
	case r.Unit != "": // systemd has ended what was left of it
	case p.Nspawn.alive() && p.Leader.alive():
		return d.adopt(ctx, m, lock)
	}
	d.opts.Logger.Warn("finished a machine without a supervisor", "machine", m.name, "instance", r.Spec.Instance)
	return m.finish(r, res)
}

// adopt starts a new supervisor beside a machine that runs.
func (d *Driver) adopt(ctx context.Context, m machine, lock *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	child, err := direct{opts: d.opts}.start(ctx, m, record{}, handover{verb: verbAdopt, lock: lock, ready: null})
	if err != nil {
		return err
	}
	d.own(m, child)
	d.opts.Logger.Warn("adopted a machine without a supervisor", "machine", m.name)
	return nil
}

// own notes a supervisor that is this process's child.
func (d *Driver) own(m machine, child *os.Process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if child != nil {
		d.children[m.name] = child
	}
}

// reap collects the exit status of a supervisor that has ended, so that it does not stay a zombie.
func (d *Driver) reap(m machine) {
	d.mu.Lock()
	child := d.children[m.name]
	delete(d.children, m.name)
	d.mu.Unlock()
	if child != nil {
		_, _ = child.Wait() // how it ended is in exit.json
	}
}
