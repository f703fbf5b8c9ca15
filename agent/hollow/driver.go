package hollow

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/muster-cloud/muster/agent/driver"
)

// firstPID is the pid of the first machine; none of them is a process.
const firstPID = 1 << 22 // above what a kernel gives

// Options are the settings of a Driver. The zero value works.
type Options struct {
	Images   []string      // that it claims to have; nil: minimal
	Lifetime time.Duration // the average after which a machine ends by itself with status 1; 0: never
}

// Driver keeps machines in memory. It implements driver.Images and driver.Volumes too.
type Driver struct {
	options  Options
	launched chan struct{} // wakes the watcher

	mu       sync.Mutex
	machines map[string]*machine
	volumes  map[string]bool
	lastPID  int
}

// machine is one that was launched; what it is at a time follows from its end.
type machine struct {
	status driver.Status // as launched, or as stopped
	ends   time.Time     // by itself; zero: never
	told   bool          // the watcher has sent its end
}

// New returns a driver without machines.
func New(o Options) *Driver {
	if o.Images == nil {
		o.Images = []string{"minimal"}
	}
	return &Driver{options: o, launched: make(chan struct{}, 1), machines: map[string]*machine{}, volumes: map[string]bool{}, lastPID: firstPID - 1}
}

// at is the machine as it is at a time.
func (m *machine) at(now time.Time) driver.Status {
	s := m.status
	if s.State == driver.Running && m.ended(now) {
		code := 1
		s.State, s.PID, s.ExitCode, s.Ended = driver.Exited, 0, &code, m.ends
		s.Reason = "exited with status 1"
	}
	return s
}

func (m *machine) ended(now time.Time) bool { return !m.ends.IsZero() && !now.Before(m.ends) }

// Images returns the images that it claims to have.
func (d *Driver) Images(context.Context) ([]string, error) { return d.options.Images, nil }

// Launch makes a machine that runs.
func (d *Driver) Launch(ctx context.Context, spec driver.Spec) (driver.Status, error) {
	if err := spec.Validate(); err != nil {
		return driver.Status{}, err
	}
	if !slices.Contains(d.options.Images, spec.Image) {
		return driver.Status{}, fmt.Errorf("%w: %s", driver.ErrNoImage, spec.Image)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	predecessor, err := spec.Predecessor(d.listLocked(now))
	if err != nil {
		return driver.Status{}, err
	}
	if err := d.mountLocked(spec.Volumes); err != nil {
		return driver.Status{}, err
	}
	if predecessor != nil {
		delete(d.machines, predecessor.Spec.Machine)
	}
	d.lastPID++
	m := &machine{status: driver.Status{Spec: spec, State: driver.Running, PID: d.lastPID, Started: now}}
	if d.options.Lifetime > 0 {
		m.ends = now.Add(time.Duration(rand.ExpFloat64() * float64(d.options.Lifetime)))
	}
	d.machines[spec.Machine] = m
	select {
	case d.launched <- struct{}{}:
	default:
	}
	return m.status, ctx.Err()
}

// Stop ends a machine at once.
func (d *Driver) Stop(_ context.Context, name string, _ time.Duration) (driver.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.machines[name]
	if m == nil {
		return driver.Status{}, fmt.Errorf("%w: %s", driver.ErrNotFound, name)
	}
	now := time.Now()
	if s := m.at(now); s.State == driver.Running {
		s.State, s.PID, s.Reason, s.Ended = driver.Exited, 0, "stopped", now
		m.status = s
	}
	return m.at(now), nil
}

// Remove forgets a machine.
func (d *Driver) Remove(_ context.Context, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.machines, name)
	return nil
}

// List returns every machine, sorted by name.
func (d *Driver) List(context.Context) ([]driver.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listLocked(time.Now()), nil
}

func (d *Driver) listLocked(now time.Time) []driver.Status {
	all := make([]driver.Status, 0, len(d.machines))
	for _, m := range d.machines {
		all = append(all, m.at(now))
	}
	slices.SortFunc(all, func(a, b driver.Status) int { return cmp.Compare(a.Spec.Machine, b.Spec.Machine) })
	return all
}

// Watch sends the names of machines that ended by themselves.
func (d *Driver) Watch(ctx context.Context) <-chan string {
	out := make(chan string)
	go func() {
		defer close(out)
		d.watch(ctx, out)
	}()
	return out
}

func (d *Driver) watch(ctx context.Context, out chan<- string) {
	const asleep = time.Hour
	timer := time.NewTimer(asleep)
	defer timer.Stop()
	for {
		names, next := d.endings(time.Now())
		for _, name := range names {
			select {
			case out <- name:
			case <-ctx.Done():
				return
			}
		}
		wait := asleep
		if !next.IsZero() {
			wait = time.Until(next)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-d.launched:
		case <-timer.C:
		}
	}
}

// endings returns the machines that have ended and were not told of, and when
// the next one ends; zero when none will.
func (d *Driver) endings(now time.Time) (names []string, next time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, m := range d.machines {
		switch {
		case m.ends.IsZero() || m.told:
		case m.ended(now):
			m.told = true
			names = append(names, name)
		case next.IsZero() || m.ends.Before(next):
			next = m.ends
		}
	}
	return names, next
}
