package simulation_test

import (
	"context"
	"errors"
	"time"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

type driverSpec = driver.Spec

// machines is the driver of one run of an agent. It judges what the agent does,
// and is dead with it.
type machines struct {
	*drivertest.Fake
	n *node
	p *process
}

func (m *machines) Launch(ctx context.Context, spec driver.Spec) (driver.Status, error) {
	if m.p.dead.Load() {
		return driver.Status{}, errDead
	}
	status, err := m.Fake.Launch(ctx, spec)
	if err == nil {
		m.n.c.note("%s: launched %s", m.n.name, spec.Machine)
		m.n.c.book.launched(m.n, spec.Machine)
		m.n.judgeGenerations(spec.Instance)
	}
	return status, err
}

func (m *machines) Relaunch(ctx context.Context, machine string) (driver.Status, error) {
	if m.p.dead.Load() {
		return driver.Status{}, errDead
	}
	status, err := m.Fake.Relaunch(ctx, machine)
	if err == nil {
		m.n.c.note("%s: launched %s again", m.n.name, machine)
		m.n.judgeGenerations(status.Spec.Instance)
	}
	return status, err
}

func (m *machines) Stop(ctx context.Context, machine string, grace time.Duration) (driver.Status, error) {
	switch {
	case m.p.dead.Load():
		return driver.Status{}, errDead
	case m.n.clumsy.Load() && m.n.driver.chance(0.2):
		return driver.Status{}, errors.New("device or resource busy")
	}
	return m.Fake.Stop(ctx, machine, grace)
}

func (m *machines) Remove(ctx context.Context, machine string) error {
	if m.p.dead.Load() {
		return errDead
	}
	m.n.c.note("%s: removes %s", m.n.name, machine)
	m.n.c.book.removing(m.n, machine)
	if m.n.clumsy.Load() && m.n.driver.chance(0.2) {
		return errors.New("device or resource busy")
	}
	return m.Fake.Remove(ctx, machine)
}

// list is what is on the host, whoever asks.
func (n *node) list() []driver.Status {
	all, err := drivertest.NewFake(n.host).List(context.Background())
	if err != nil {
		panic(err) // a fake's never fails
	}
	return all
}

// judgeGenerations judges that no instance runs in two generations at once,
// wherever.
func (n *node) judgeGenerations(instance string) {
	var live []string
	for _, other := range n.c.nodes {
		for _, m := range other.list() {
			if m.Spec.Instance == instance && m.State == driver.Running {
				live = append(live, other.name+"/"+m.Spec.Machine)
			}
		}
	}
	if len(live) > 1 {
		n.c.fault("%s runs more than once: %v", instance, live)
	}
}
