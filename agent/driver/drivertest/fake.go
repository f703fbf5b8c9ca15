package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// Fake is a driver in memory; it implements driver.Images, driver.Logs, driver.Stats, driver.Volumes,
// driver.Processes, driver.ProcessLogs, driver.Exec, driver.Artifacts and driver.Dialer too.
type Fake struct {
	host *Host
}

// NewFake returns a driver of a host's machines.
func NewFake(host *Host) *Fake { return &Fake{host: host} }

// Images returns the host's images.
func (f *Fake) Images(context.Context) ([]string, error) {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	return slices.Clone(f.host.images), nil
}

// Launch starts the program that the command's first word names; without a
// command it idles.
func (f *Fake) Launch(ctx context.Context, spec driver.Spec) (driver.Status, error) {
	if err := spec.Validate(); err != nil {
		return driver.Status{}, err
	}
	h := f.host
	m, predecessor, err := h.claim(spec)
	if err != nil {
		return driver.Status{}, err
	}
	defer close(m.launched)
	err = h.hook(ctx, spec)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		delete(h.machines, spec.Machine)
		return driver.Status{}, err
	}
	if predecessor != "" {
		delete(h.machines, predecessor)
	}
	h.launches[spec.Machine]++
	h.startLocked(m)
	return m.status, nil
}

// Relaunch starts a machine that has Exited again, on its own disk; see nspawn.Driver.
func (f *Fake) Relaunch(ctx context.Context, name string) (driver.Status, error) {
	h := f.host
	before, err := h.settled(ctx, name)
	if err != nil {
		return driver.Status{}, err
	}
	h.mu.Lock()
	if before.status.State != driver.Exited || h.machines[name] != before {
		h.mu.Unlock()
		return driver.Status{}, fmt.Errorf("%w and runs: %s", driver.ErrExists, name)
	}
	m := newMachine(before.status.Spec, before.process.Disk)
	m.process.volumes = h.mountLocked(before.status.Spec.Volumes)
	m.process.output.WriteString(before.process.Output()) // its console goes on
	h.machines[name] = m
	h.mu.Unlock()
	defer close(m.launched)
	err = h.hook(ctx, before.status.Spec)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.machines[name] = before
		return driver.Status{}, err
	}
	h.launches[name]++
	h.startLocked(m)
	return m.status, nil
}

// hook calls what OnLaunch was given. Its error, or that of ctx, ends the launch.
func (h *Host) hook(ctx context.Context, spec driver.Spec) error {
	h.mu.Lock()
	fn := h.onLaunch
	h.mu.Unlock()
	if fn != nil {
		if err := fn(ctx, spec); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// claim puts a Preparing machine down, on its predecessor's disk or a fresh one.
func (h *Host) claim(spec driver.Spec) (*machine, string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if image := muster.ImageRef(spec.Image, spec.ImageDigest); !slices.Contains(h.images, image) {
		return nil, "", fmt.Errorf("%w: %s", driver.ErrNoImage, image)
	}
	if err := h.allowedLocked(spec.Volumes); err != nil {
		return nil, "", err
	}
	predecessor, err := spec.Predecessor(h.statusesLocked())
	if err != nil {
		return nil, "", err
	}
	disk, name := &Disk{files: map[string]string{}}, ""
	if predecessor != nil {
		name = predecessor.Spec.Machine
		disk = h.machines[name].process.Disk
	}
	m := newMachine(spec, disk)
	m.process.volumes = h.mountLocked(spec.Volumes)
	h.machines[spec.Machine] = m
	return m, name, nil
}

func newMachine(spec driver.Spec, disk *Disk) *machine {
	term, killed := make(chan struct{}), make(chan struct{})
	return &machine{
		status:   driver.Status{Spec: spec, State: driver.Preparing},
		process:  &Process{Spec: spec, Term: term, Killed: killed, Disk: disk},
		term:     sync.OnceFunc(func() { close(term) }),
		kill:     sync.OnceFunc(func() { close(killed) }),
		launched: make(chan struct{}),
		ended:    make(chan struct{}),
	}
}

func (h *Host) startLocked(m *machine) {
	m.status.Started = time.Now()
	word := "idle"
	if len(m.status.Spec.Command) > 0 {
		word = m.status.Spec.Command[0]
	}
	program, ok := h.programs[word]
	if !ok {
		h.exitLocked(m, nil, fmt.Sprintf("could not start: execv(%s) failed: No such file or directory", word))
		return
	}
	h.lastPID++
	m.status.State, m.status.PID = driver.Running, h.lastPID
	h.payloads.Go(func() {
		code := program(m.process)
		h.end(m, &code, "")
	})
}

// Stop tells the program to stop; after grace it is ended by force.
func (f *Fake) Stop(ctx context.Context, name string, grace time.Duration) (driver.Status, error) {
	m, err := f.host.settled(ctx, name)
	if err != nil {
		return driver.Status{}, err
	}
	f.host.mu.Lock()
	m.stopping = true
	f.host.mu.Unlock()
	m.term()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-m.ended:
	case <-ctx.Done():
		return driver.Status{}, ctx.Err()
	case <-timer.C:
		f.host.end(m, nil, "")
	}
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	return m.status, nil
}

// Remove ends a machine by force and forgets it.
func (f *Fake) Remove(ctx context.Context, name string) error {
	m, err := f.host.settled(ctx, name)
	if errors.Is(err, driver.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	f.host.end(m, nil, "stopped")
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	delete(f.host.machines, name)
	return nil
}

// settled returns a machine once its launch is over.
func (h *Host) settled(ctx context.Context, name string) (*machine, error) {
	h.mu.Lock()
	m, ok := h.machines[name]
	h.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("%w: %s", driver.ErrNotFound, name)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-m.launched:
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.machines[name] != m {
		return nil, fmt.Errorf("%w: %s", driver.ErrNotFound, name)
	}
	return m, nil
}

// List returns the host's machines.
func (f *Fake) List(context.Context) ([]driver.Status, error) {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	return f.host.statusesLocked(), nil
}

// Watch sends the names of machines whose payloads ended.
func (f *Fake) Watch(ctx context.Context) <-chan string {
	w := &watcher{names: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	f.host.mu.Lock()
	f.host.watchers[w] = struct{}{}
	f.host.mu.Unlock()
	out := make(chan string)
	go func() {
		defer close(out)
		w.run(ctx, out)
		f.host.mu.Lock()
		defer f.host.mu.Unlock()
		delete(f.host.watchers, w)
	}()
	return out
}

// watcher is a set of names to send; adding never blocks.
type watcher struct {
	mu    sync.Mutex
	names map[string]struct{}
	wake  chan struct{}
}

func (w *watcher) add(name string) {
	w.mu.Lock()
	w.names[name] = struct{}{}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) run(ctx context.Context, out chan<- string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		w.mu.Lock()
		names := slices.Sorted(maps.Keys(w.names))
		clear(w.names)
		w.mu.Unlock()
		for _, name := range names {
			select {
			case <-ctx.Done():
				return
			case out <- name:
			}
		}
	}
}
