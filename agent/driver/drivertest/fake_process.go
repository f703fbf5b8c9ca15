package drivertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// fakeProcess is a process in a machine of a Host.
type fakeProcess struct {
	status  driver.ProcessStatus
	process *Process
	log     string // of those before it under its name
	term    func()
	kill    func()
	stopped bool
	ended   chan struct{} // closed once Exited
}

// StartProcess starts the program that the command's first word names.
func (f *Fake) StartProcess(_ context.Context, spec driver.ProcessSpec) (driver.ProcessStatus, error) {
	if err := spec.Validate(); err != nil {
		return driver.ProcessStatus{}, err
	}
	h := f.host
	h.mu.Lock()
	defer h.mu.Unlock()
	m, ok := h.machines[spec.Machine]
	if !ok {
		return driver.ProcessStatus{}, fmt.Errorf("%w: %s", driver.ErrNotFound, spec.Machine)
	}
	if m.status.State != driver.Running {
		return driver.ProcessStatus{}, muster.Errorf(muster.Conflict, "the machine %s does not run", spec.Machine)
	}
	before, ok := h.processes[spec.ProcessRef]
	if ok && before.status.State != driver.Exited {
		return driver.ProcessStatus{}, fmt.Errorf("%w and runs: %s", driver.ErrExists, spec.ProcessRef)
	}
	p := h.newProcessLocked(spec.Machine, spec.Command, spec.Env)
	p.status.Spec = spec
	p.status.Spec.Env = nil
	if before != nil {
		p.log = before.log + before.process.Output()
	}
	h.processes[spec.ProcessRef] = p
	h.starts[spec.ProcessRef]++
	h.runLocked(p, m)
	return p.status, nil
}

func (h *Host) newProcessLocked(machine string, command []string, env map[string]string) *fakeProcess {
	m := h.machines[machine]
	term, killed := make(chan struct{}), make(chan struct{})
	spec := driver.Spec{Machine: machine, Command: command, Env: env, Hostname: m.status.Spec.Hostname}
	return &fakeProcess{
		process: &Process{Spec: spec, Term: term, Killed: killed, Disk: m.process.Disk},
		term:    sync.OnceFunc(func() { close(term) }),
		kill:    sync.OnceFunc(func() { close(killed) }),
		ended:   make(chan struct{}),
		status:  driver.ProcessStatus{State: driver.Running, Started: time.Now()},
	}
}

// runLocked runs the program, which ends with its machine at the latest.
func (h *Host) runLocked(p *fakeProcess, m *machine) {
	word := p.process.Spec.Command[0]
	program, ok := h.programs[word]
	if !ok {
		h.processEndedLocked(p, nil, fmt.Sprintf("could not start: there is no program %q in the instance", word), driver.Itself)
		return
	}
	h.lastPID++
	p.status.PID = h.lastPID
	h.payloads.Go(func() {
		code := program(p.process)
		h.endProcess(p, &code, fmt.Sprintf("exited with status %d", code), driver.Itself)
	})
	h.payloads.Go(func() {
		select {
		case <-p.ended:
		case <-m.ended:
			h.endProcess(p, nil, "ended with its instance", driver.Machine)
		}
	})
}

// endProcess moves a running process to Exited; whoever comes first gives the reason.
func (h *Host) endProcess(p *fakeProcess, code *int, reason string, cause driver.Cause) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.status.State == driver.Running {
		h.processEndedLocked(p, code, reason, cause)
	}
}

func (h *Host) processEndedLocked(p *fakeProcess, code *int, reason string, cause driver.Cause) {
	if p.stopped {
		reason, cause = "stopped", driver.Stopped
	}
	p.status.State, p.status.PID, p.status.ExitCode = driver.Exited, 0, code
	p.status.Reason, p.status.Cause, p.status.Ended = reason, cause, time.Now()
	p.status.OOM = strings.Contains(reason, "out of memory")
	p.status.Output = muster.Storable(p.process.Output(), driver.OutputLimit)
	close(p.ended)
	p.kill()
	for w := range h.processWatchers {
		w.add(p.status.Spec.ProcessRef.String())
	}
}

// StopProcess tells the program to stop; after grace it is ended by force.
func (f *Fake) StopProcess(ctx context.Context, ref driver.ProcessRef, stop driver.Stop) (driver.ProcessStatus, error) {
	h := f.host
	h.mu.Lock()
	p, ok := h.processes[ref]
	if ok && p.status.State == driver.Running {
		p.stopped = true
	}
	h.mu.Unlock()
	if !ok {
		return driver.ProcessStatus{}, fmt.Errorf("%w: process %s", driver.ErrNotFound, ref)
	}
	p.term()
	timer := time.NewTimer(stop.Grace)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-ctx.Done():
		return driver.ProcessStatus{}, ctx.Err()
	case <-timer.C:
		h.endProcess(p, nil, "", driver.Stopped)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return p.status, nil
}

// RemoveProcess ends a process by force and forgets it.
func (f *Fake) RemoveProcess(_ context.Context, ref driver.ProcessRef) error {
	h := f.host
	h.mu.Lock()
	p, ok := h.processes[ref]
	h.mu.Unlock()
	if ok {
		h.endProcess(p, nil, "removed", driver.Stopped)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.processes, ref)
	return nil
}

// ListProcesses returns the host's processes.
func (f *Fake) ListProcesses(context.Context) ([]driver.ProcessStatus, error) {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	all := make([]driver.ProcessStatus, 0, len(f.host.processes))
	for _, p := range f.host.processes {
		if _, ok := f.host.machines[p.status.Spec.Machine]; ok {
			all = append(all, p.status)
		}
	}
	slices.SortFunc(all, func(a, b driver.ProcessStatus) int {
		return strings.Compare(a.Spec.ProcessRef.String(), b.Spec.ProcessRef.String())
	})
	return all, nil
}

// WatchProcesses sends the processes that ended.
func (f *Fake) WatchProcesses(ctx context.Context) <-chan driver.ProcessRef {
	w := &watcher{names: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	f.host.mu.Lock()
	f.host.processWatchers[w] = struct{}{}
	f.host.mu.Unlock()
	names, out := make(chan string), make(chan driver.ProcessRef)
	go func() {
		defer close(names)
		w.run(ctx, names)
		f.host.mu.Lock()
		defer f.host.mu.Unlock()
		delete(f.host.processWatchers, w)
	}()
	go func() {
		defer close(out)
		for name := range names {
			m, n, _ := strings.Cut(name, "/")
			select {
			case out <- driver.ProcessRef{Machine: m, Name: n}:
			case <-ctx.Done(): // names ends too
			}
		}
	}()
	return out
}

// ReadProcessLog reads what the programs of that name have printed, all of which is kept.
func (f *Fake) ReadProcessLog(_ context.Context, ref driver.ProcessRef, r driver.LogRead) (driver.LogPart, error) {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	p, ok := f.host.processes[ref]
	if _, machine := f.host.machines[ref.Machine]; !ok || !machine {
		return driver.LogPart{}, fmt.Errorf("%w: process %s", driver.ErrNotFound, ref)
	}
	return readText(p.log+p.process.Output(), r, p.status.State == driver.Exited), nil
}

// Exec runs a program until it ends. It has no input, and its output comes at the end.
func (f *Fake) Exec(ctx context.Context, spec driver.ExecSpec, streams driver.Streams) (driver.Exit, error) {
	if err := spec.Validate(); err != nil {
		return driver.Exit{}, err
	}
	if closer, ok := streams.Stdin.(io.Closer); ok {
		defer closer.Close()
	}
	h := f.host
	h.mu.Lock()
	m, ok := h.machines[spec.Machine]
	if !ok || m.status.State != driver.Running {
		h.mu.Unlock()
		return driver.Exit{}, fmt.Errorf("%w, or does not run: %s", driver.ErrNotFound, spec.Machine)
	}
	p := h.newProcessLocked(spec.Machine, spec.Command, spec.Env)
	h.runLocked(p, m)
	h.mu.Unlock()
	select {
	case <-p.ended:
	case <-ctx.Done():
		h.endProcess(p, nil, "killed", driver.Stopped)
		return driver.Exit{}, ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if streams.Stdout != nil {
		if _, err := io.WriteString(streams.Stdout, p.process.Output()); err != nil {
			return driver.Exit{}, err
		}
	}
	failure, failed := strings.CutPrefix(p.status.Reason, "could not start: ")
	switch {
	case failed:
		return driver.Exit{Failure: failure}, nil
	case p.status.ExitCode == nil:
		return driver.Exit{Code: 137, Signal: 9}, nil
	}
	return driver.Exit{Code: *p.status.ExitCode}, nil
}

// Starts returns how often a process of that name was started.
func (h *Host) Starts(ref driver.ProcessRef) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.starts[ref]
}

// ExitProcess ends a running process as if by itself. It does nothing to one that is not running.
func (h *Host) ExitProcess(ref driver.ProcessRef, code int) error {
	h.mu.Lock()
	p, ok := h.processes[ref]
	h.mu.Unlock()
	if !ok {
		return errors.New("there is no process " + ref.String())
	}
	h.endProcess(p, &code, fmt.Sprintf("exited with status %d", code), driver.Itself)
	return nil
}

// Processes returns the names of all processes that were ever started and not removed, sorted.
func (h *Host) Processes() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for ref := range maps.Keys(h.processes) {
		names = append(names, ref.String())
	}
	slices.Sort(names)
	return names
}
