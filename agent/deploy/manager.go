package deploy

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/artifact"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/proc"
)

// Machine is a machine of the node with the services that are wanted in it.
type Machine struct {
	Name     string
	Addr     string // of its network; empty: it has none
	Running  bool
	Services []*muster.ServiceAssignment
	Told     time.Time // when the services were told of, from which on their Drain counts
}

// Port is a port of the node that leads to a service.
type Port struct {
	muster.Published
	Owner muster.ServiceID
	Addr  string // of the machine
	To    int    // the service's own
}

// Ports publishes ports of the node.
type Ports interface {
	// Publish has exactly these ports lead where they say, from now on, and returns why
	// some cannot.
	Publish(ctx context.Context, ports []Port) (map[muster.ServiceID]error, error)
}

// Options are what a Manager needs. Driver has to be there; what it lacks the ability
// for fails, with the reason.
type Options struct {
	Driver driver.Driver
	Fetch  *artifact.Fetcher // default one that fetches by http alone
	Ports  Ports             // default: nothing can be published
	// Changed is called when there may be news, from any goroutine. Default: nobody is told.
	Changed func()
	Checks  int          // how many work at a time; default 64
	Fetches int          // how many at a time; default 4
	Logger  *slog.Logger // default: none
}

// Manager brings services into instances. Its methods are safe for concurrent use.
type Manager struct {
	o          Options
	processes  driver.Processes // nil: the driver cannot
	supervisor *proc.Supervisor
	slots      chan struct{} // of checks
	fetches    chan struct{}
	publisher  publisher

	mu      sync.Mutex
	units   map[muster.ServiceID]*unit
	pending []*unit
	wake    chan struct{}
	settled chan struct{} // closed once the services that were wanted first have been looked at
	first   bool          // they have been told
	told    chan []*unit
}

// New returns a Manager that does nothing yet.
func New(o Options) *Manager {
	if o.Fetch == nil {
		o.Fetch = artifact.New(artifact.Options{})
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Checks <= 0 {
		o.Checks = 64
	}
	if o.Fetches <= 0 {
		o.Fetches = 4
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Manager{
		o: o, slots: make(chan struct{}, o.Checks), fetches: make(chan struct{}, o.Fetches),
		units: map[muster.ServiceID]*unit{}, wake: make(chan struct{}, 1),
		settled: make(chan struct{}), told: make(chan []*unit, 1),
	}
	m.publisher = publisher{m: m, due: make(chan struct{}, 1)}
	if processes, ok := o.Driver.(driver.Processes); ok {
		m.processes = processes
		m.supervisor = proc.New(proc.Options{Driver: processes, Changed: m.look, Logger: o.Logger})
	}
	return m
}

// Run works until ctx ends. Processes and published ports stay as they are.
func (m *Manager) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if m.supervisor != nil {
		group.Go(func() error { return m.supervisor.Run(ctx) })
	}
	group.Go(func() error { return m.publisher.run(ctx) })
	group.Go(func() error { return m.settle(ctx) })
	group.Go(func() error {
		for {
			for _, u := range m.take() {
				group.Go(func() error {
					u.run(ctx)
					return nil
				})
			}
			select {
			case <-ctx.Done():
				return nil
			case <-m.wake:
			}
		}
	})
	return group.Wait()
}

func (m *Manager) take() []*unit {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.pending
	m.pending = nil
	return taken
}

// Want says everything that is wanted on the node. Of services that are left out nothing
// is said any more, and their processes are left as they are: only what is named as
// removed goes.
func (m *Manager) Want(machines []Machine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	named := map[muster.ServiceID]bool{}
	for _, machine := range machines {
		for _, s := range machine.Services {
			named[s.ID] = true
			u := m.units[s.ID]
			if u == nil {
				u = newUnit(m, s.ID)
				m.units[s.ID] = u
				m.pending = append(m.pending, u)
			}
			w := wanted{service: s, machine: machine.Name, addr: machine.Addr, running: machine.Running}
			if s.Drain > 0 {
				w.drained = machine.Told.Add(s.Drain)
			}
			u.set(w)
		}
	}
	for id, u := range m.units {
		if !named[id] {
			u.set(wanted{})
			delete(m.units, id)
		}
	}
	if !m.first {
		m.first = true
		m.told <- slices.Clone(m.pending)
	}
	if len(m.pending) > 0 {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

// settle waits until the units that were told of first have been looked at, for a while.
func (m *Manager) settle(ctx context.Context) error {
	var units []*unit
	select {
	case <-ctx.Done():
		return nil
	case units = <-m.told:
	}
	defer close(m.settled)
	if err := m.o.Fetch.Tidy(m.used()); err != nil {
		m.o.Logger.Warn("the artifacts that are kept cannot be tidied", "err", err)
	}
	late := time.After(10 * time.Second)
	for _, u := range units {
		select {
		case <-u.looked:
		case <-ctx.Done():
			return nil
		case <-late:
			return nil
		}
	}
	return nil
}

// look has the unit of a process looked at.
func (m *Manager) look(ref driver.ProcessRef) {
	m.mu.Lock()
	u := m.units[muster.ServiceID(ref.Name)]
	m.mu.Unlock()
	if u != nil {
		u.nudge()
	}
}

// used are the checksums of what the services on this node are made of.
func (m *Manager) used() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	used := map[string]bool{}
	for _, u := range m.units {
		if of := u.artifact(); of != "" {
			used[of] = true
		}
	}
	return used
}

// lookAtAll has every unit looked at.
func (m *Manager) lookAtAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.units {
		u.nudge()
	}
}

// Reports says how the services of a machine are, in order of their ids; of those that
// nothing can be said of yet, nothing.
func (m *Manager) Reports(machine string) []muster.ServiceReportInput {
	m.mu.Lock()
	units := make([]*unit, 0, len(m.units))
	for _, u := range m.units {
		units = append(units, u)
	}
	m.mu.Unlock()
	var out []muster.ServiceReportInput
	for _, u := range units {
		if r, ok := u.report(machine); ok {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b muster.ServiceReportInput) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}

// ReportCheck takes what a service says of its own TTL check. NOT_FOUND: there is no
// such service here, or it has no such check.
func (m *Manager) ReportCheck(r muster.CheckRequest) error {
	m.mu.Lock()
	u := m.units[r.Service]
	m.mu.Unlock()
	if u == nil {
		return muster.Errorf(muster.NotFound, "the service %s is not on this node", r.Service)
	}
	return u.reportCheck(r)
}
