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

	"github.com/muster-cloud/muster/agent/driver"
)

// ListProcesses implements driver.Processes. One that has lost its supervisor gets a new one, or is Exited from then on.
func (d *Driver) ListProcesses(ctx context.Context) ([]driver.ProcessStatus, error) {
	names, err := d.serviceNames("")
	if err != nil {
		return nil, err
	}
	all := make([]driver.ProcessStatus, 0, len(names))
	for _, name := range names {
		status, err := d.listedService(ctx, d.serviceAt(refOf(name)))
		if errors.Is(err, driver.ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("process %s: %w", refOf(name), err)
		}
		all = append(all, status)
	}
	return all, nil
}

// listedService is observedService for who has not the process's turn.
func (d *Driver) listedService(ctx context.Context, at machine) (driver.ProcessStatus, error) {
	status, lost, err := observeService(at)
	if err != nil || !lost {
		return status, err
	}
	unlock, err := d.keys.lock(ctx, at.name)
	if err != nil {
		return driver.ProcessStatus{}, err
	}
	defer unlock()
	return d.observedService(ctx, at)
}

// observedService returns a process's status once it has a supervisor or has ended. The caller has its turn.
func (d *Driver) observedService(ctx context.Context, at machine) (driver.ProcessStatus, error) {
	status, lost, err := observeService(at)
	if err == nil && lost {
		if err = d.recoverService(ctx, at); err == nil {
			status, _, err = observeService(at)
		}
	}
	if err == nil && status.State == driver.Exited {
		d.reap(at)
	}
	return status, err
}

// observeService reads a process's status, and whether it has lost its supervisor.
func observeService(at machine) (s driver.ProcessStatus, lost bool, err error) {
	var r serviceRecord
	err = at.read("process.json", &r)
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, fmt.Errorf("%w: process %s", driver.ErrNotFound, refOf(at.name))
	}
	if err != nil { // it is shown, so that it can be removed
		return driver.ProcessStatus{Spec: driver.ProcessSpec{ProcessRef: refOf(at.name)}, State: driver.Exited, Reason: "its record is damaged: " + err.Error()}, false, nil
	}
	held, err := at.held() // before its ending is looked for: that is written before the lock is let go
	if err != nil {
		return s, false, err
	}
	var now serviceState
	_ = at.read("state.json", &now) // none: it is being started
	s = driver.ProcessStatus{Spec: r.Spec, State: driver.Preparing, Started: now.Started}
	if now.Main.PID != 0 {
		s.State, s.PID = driver.Running, now.Main.PID
	}
	if held {
		return s, false, nil
	}
	var e serviceEnding
	err = at.read("exit.json", &e)
	if errors.Is(err, fs.ErrNotExist) {
		return s, true, nil
	}
	if err != nil {
		e = serviceEnding{ending: ending{Reason: "ended, but how is damaged: " + err.Error()}}
	}
	s.State, s.PID, s.ExitCode = driver.Exited, 0, e.Code
	s.Reason, s.OOM, s.Cause, s.Ended = e.Reason, e.OOM, e.Cause, e.Ended
	s.Output, err = at.output()
	return s, false, err
}

// recoverService gives a process that has lost its supervisor a new one, or finishes it. The caller has its turn.
func (d *Driver) recoverService(ctx context.Context, at machine) error {
	lock, err := at.tryLock()
	if err != nil || lock == nil {
		return err
	}
	defer lock.Close()
	if exists(at.path("exit.json")) {
		return nil
	}
	var r serviceRecord
	if err := at.read("process.json", &r); err != nil {
		return err
	}
	d.reap(at)
	boot, err := hostBoot()
	if err != nil {
		return err
	}
	var s serviceState
	end := serviceEnd{}
	switch err := at.read("state.json", &s); {
	case boot != r.HostBoot:
		end.restarted = true
	case err != nil || s.Main.PID == 0:
		end.failure = errors.New("its start was interrupted")
		if log, _ := os.ReadFile(at.path("supervisor.log")); len(log) > 0 {
			end.failure = fmt.Errorf("its start was interrupted: %s", lastLine(string(log)))
		}
	case s.Main.alive() && r.Leader.alive():
		return d.adoptService(at, lock)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	d.opts.Logger.Warn("finished a process without a supervisor", "process", refOf(at.name).String())
	return finishService(at, r, end)
}

func (d *Driver) adoptService(at machine, lock *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	child, err := d.startAttendant(verbServiceAdopt, at, []*os.File{lock, null})
	if err != nil {
		return err
	}
	d.own(at, child)
	d.opts.Logger.Warn("adopted a process without a supervisor", "process", refOf(at.name).String())
	return nil
}

// removeService ends a process and deletes everything of it. The caller has its turn.
func (d *Driver) removeService(ctx context.Context, at machine) error {
	status, err := d.observedService(ctx, at)
	if err == nil && status.State != driver.Exited {
		err = errors.Join(at.setStopping(), d.killService(ctx, at))
	}
	if err != nil && !errors.Is(err, driver.ErrNotFound) {
		return err
	}
	d.reap(at)
	var s serviceState
	_ = at.read("state.json", &s) // none: it had no supervisor
	leaving, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	// It lets go of the lock just before it ends; its cgroup can be removed only then.
	_ = poll(leaving, func() (bool, error) { return !s.Supervisor.alive(), nil })
	// The directory first: what has none is not listed. The lock can be there without.
	err = os.RemoveAll(at.dir())
	if gone := os.Remove(at.lockPath()); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// forgetServices removes the processes of a machine that has ended. Whoever calls it has the machine's turn.
func (d *Driver) forgetServices(ctx context.Context, machineName string) error {
	names, err := d.serviceNames(machineName + ".")
	for _, name := range names {
		err = errors.Join(err, d.RemoveProcess(ctx, refOf(name)))
	}
	return err
}

// serviceNames returns the names of processes that have a prefix, sorted.
func (d *Driver) serviceNames(prefix string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(d.opts.StateDir, "processes", "machines"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) && strings.Contains(entry.Name(), ".") {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// ReadProcessLog implements driver.ProcessLogs.
func (d *Driver) ReadProcessLog(_ context.Context, ref driver.ProcessRef, r driver.LogRead) (driver.LogPart, error) {
	at := d.serviceAt(ref)
	if !isName(at.name) {
		return driver.LogPart{}, fmt.Errorf("%w: process %.80q", driver.ErrNotFound, ref)
	}
	return at.readLog(r, func() (bool, error) {
		s, _, err := observeService(at)
		return s.State == driver.Exited, err
	})
}

// WatchProcesses implements driver.Processes, as Watch does for machines.
func (d *Driver) WatchProcesses(ctx context.Context) <-chan driver.ProcessRef {
	out := make(chan driver.ProcessRef)
	names := d.watchLocks(ctx, filepath.Join(d.opts.StateDir, "processes", "locks"), func() ([]string, error) { return d.serviceNames("") })
	go func() {
		defer close(out)
		for name := range names {
			select {
			case out <- refOf(name):
			case <-ctx.Done(): // names ends too
			}
		}
	}()
	return out
}
