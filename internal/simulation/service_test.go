package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/registry"
)

// serviceWish is what an operator wants of services.
func (o *operator) serviceWish(ctx context.Context) {
	switch o.dice.below(12) {
	case 0, 1, 2, 3:
		o.deploy(ctx)
	case 4:
		if len(o.deployed) > 0 {
			o.sendService(ctx, pick(o.dice, o.deployed)) // again: it gives the same service
		}
	case 5, 6:
		o.service(ctx, "start service", func(ctx context.Context, l *life, id muster.ServiceID) (*muster.Service, int64, error) {
			return l.StartService(ctx, id)
		})
	case 7:
		o.service(ctx, "stop service", func(ctx context.Context, l *life, id muster.ServiceID) (*muster.Service, int64, error) {
			return l.StopService(ctx, id)
		})
	case 8, 9:
		o.service(ctx, "restart service", func(ctx context.Context, l *life, id muster.ServiceID) (*muster.Service, int64, error) {
			return l.RestartService(ctx, id)
		})
	default:
		o.service(ctx, "remove service", func(ctx context.Context, l *life, id muster.ServiceID) (*muster.Service, int64, error) {
			return l.RemoveService(ctx, id)
		})
	}
}

func (o *operator) deploy(ctx context.Context) {
	o.requests++
	in := muster.DeployServiceInput{
		Name: fmt.Sprintf("s%s-%d", strings.TrimPrefix(o.name, "operator"), o.requests), RequestID: fmt.Sprintf("%s/%d", o.name, o.requests),
		Command: pick(o.dice, [][]string{{"idle"}, {"idle"}, {"idle"}, {"stubborn"}, {"exit", "0", "done"}, {"exit", "3", "oh"}, {"no such program"}}),
		Port:    80, StableFor: o.dice.span(0, 40*time.Second),
	}
	switch o.dice.below(4) {
	case 0, 1:
		in.Type, in.Queue = new(pick(o.dice, []muster.InstanceType{muster.Nano, muster.Micro})), o.dice.chance(0.3)
	default:
		in.InstanceID = new(o.anInstance())
	}
	if o.dice.chance(0.3) {
		in.Publish = &muster.Published{Protocol: muster.TCP, Port: pick(o.dice, []int{0, 0, 8080})}
	}
	if o.dice.chance(0.5) {
		in.Checks = []muster.Check{{Name: "up", Kind: muster.ExecCheck, Command: []string{"exit", pick(o.dice, []string{"0", "0", "1", "2"}), ""}}}
	}
	if o.dice.chance(0.4) {
		in.Restart = &muster.RestartPolicy{When: pick(o.dice, []muster.RestartWhen{muster.RestartAlways, muster.RestartNever}), Attempts: 3}
	}
	if o.dice.chance(0.7) {
		in.RegisterWhenStable = []muster.RegistrationSpec{{Cluster: "sim", Protocol: "http", Annotations: muster.Map{"on": "{{ .Node.ID }}"}}}
		if o.dice.chance(0.3) { // one of several that share an entry
			in.RegisterWhenStable[0].Service, in.RegisterWhenStable[0].Address = "shared", "192.0.2.200"
		}
	}
	o.sendService(ctx, in)
}

func (o *operator) sendService(ctx context.Context, in muster.DeployServiceInput) {
	out, ok := insist(ctx, o, "deploy", []muster.Code{muster.NoCapacity, muster.Limit, muster.NotFound, muster.Invalid, muster.Conflict, muster.AlreadyExists},
		func(ctx context.Context, l *life) (*muster.Service, int64, error) { return l.DeployService(ctx, in) })
	if !ok {
		return
	}
	s := out.object
	o.c.note("%s: %s is %s in %s, %s", o.name, in.RequestID, s.ID, s.InstanceID, s.Status)
	if before, there := o.services[in.RequestID]; there && before != s.ID {
		o.c.fault("%s gave %s and then %s", in.RequestID, before, s.ID)
	} else if !there {
		o.deployed = append(o.deployed, in)
	}
	o.services[in.RequestID] = s.ID
	o.c.book.told("deploy", string(s.ID), s.Revision, s)
}

// aService is one that there is, or a made-up one.
func (o *operator) aService() muster.ServiceID {
	ids := []muster.ServiceID{"svc-999999"}
	if l := o.c.life.Load(); l != nil {
		for s := range l.View().Services() {
			if !s.Gone() {
				ids = append(ids, s.ID, s.ID, s.ID)
			}
		}
	}
	return pick(o.dice, ids)
}

func (o *operator) service(ctx context.Context, what string, do func(context.Context, *life, muster.ServiceID) (*muster.Service, int64, error)) {
	id := o.aService()
	out, ok := insist(ctx, o, what, []muster.Code{muster.NotFound, muster.Conflict, muster.NoCapacity},
		func(ctx context.Context, l *life) (*muster.Service, int64, error) { return do(ctx, l, id) })
	if ok {
		o.c.note("%s: %s %s: %s, generation %d", o.name, what, id, out.object.Status, out.object.Generation)
		o.c.book.told(what, string(id), out.object.Revision, out.object)
	}
}

// StartProcess judges that a service runs once at a time, wherever.
func (m *machines) StartProcess(ctx context.Context, spec driver.ProcessSpec) (driver.ProcessStatus, error) {
	switch {
	case m.p.dead.Load():
		return driver.ProcessStatus{}, errDead
	case m.n.clumsy.Load() && m.n.driver.chance(0.2):
		return driver.ProcessStatus{}, errors.New("resource temporarily unavailable")
	}
	status, err := m.Fake.StartProcess(ctx, spec)
	if err != nil {
		return status, err
	}
	m.n.c.note("%s: started %s", m.n.name, spec.ProcessRef)
	var live []string
	for _, other := range m.n.c.nodes {
		for _, p := range other.processes() {
			if p.Spec.Name == spec.Name && p.State == driver.Running {
				live = append(live, other.name+"/"+p.Spec.String())
			}
		}
	}
	if len(live) > 1 {
		m.n.c.fault("%s runs more than once: %v", spec.Name, live)
	}
	return status, nil
}

func (m *machines) StopProcess(ctx context.Context, ref driver.ProcessRef, stop driver.Stop) (driver.ProcessStatus, error) {
	switch {
	case m.p.dead.Load():
		return driver.ProcessStatus{}, errDead
	case m.n.clumsy.Load() && m.n.driver.chance(0.2):
		return driver.ProcessStatus{}, errors.New("device or resource busy")
	}
	return m.Fake.StopProcess(ctx, ref, stop)
}

func (m *machines) RemoveProcess(ctx context.Context, ref driver.ProcessRef) error {
	if m.p.dead.Load() {
		return errDead
	}
	m.n.c.note("%s: removes %s", m.n.name, ref)
	m.n.c.book.removingService(m.n, muster.ServiceID(ref.Name))
	if m.n.clumsy.Load() && m.n.driver.chance(0.2) {
		return errors.New("device or resource busy")
	}
	return m.Fake.RemoveProcess(ctx, ref)
}

// ports are what a node publishes. They outlive its agents.
type ports struct {
	mu  sync.Mutex
	now map[muster.ServiceID]deploy.Port
}

// Publish implements deploy.Ports.
func (p *ports) Publish(_ context.Context, wanted []deploy.Port) (map[muster.ServiceID]error, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = map[muster.ServiceID]deploy.Port{}
	for _, port := range wanted {
		p.now[port.Owner] = port
	}
	return nil, nil
}

func (p *ports) of(id muster.ServiceID) (deploy.Port, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	port, ok := p.now[id]
	return port, ok
}

// shelf is the discovery feed of one life of the server.
type shelf struct {
	mu   sync.Mutex
	kept map[string]bool // the keys of entries
}

// Keep implements registry.Feed.
func (s *shelf) Keep(entries []registry.FeedEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = map[string]bool{}
	for _, e := range entries {
		s.kept[muster.OwnEntryKey(e.Registration)] = true
	}
}

// Verify implements registry.Feed.
func (s *shelf) Verify(context.Context, bool) ([]muster.FeedFinding, error) { return nil, nil }

// CheckTTL implements registry.Feed.
func (s *shelf) CheckTTL(string, *time.Duration) error { return nil }

// Flaw implements registry.Feed.
func (s *shelf) Flaw() (reason string, since time.Time) { return "", since }

func (s *shelf) keeps(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[key]
}

func (s *shelf) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.kept)
}
