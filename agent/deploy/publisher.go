package deploy

import (
	"context"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
)

// publishRetry is when ports that could not be published are tried again.
const publishRetry = 5 * time.Second

// publisher has the ports of all units published, together.
type publisher struct {
	m   *Manager
	due chan struct{}

	mu     sync.Mutex
	wanted map[muster.ServiceID]Port
	failed map[muster.ServiceID]string
}

// set says which port of a service is to be published; nil: none.
func (p *publisher) set(id muster.ServiceID, port *Port) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, had := p.wanted[id]
	switch {
	case port == nil && !had, port != nil && had && before == *port:
		return
	case port == nil:
		delete(p.wanted, id)
		delete(p.failed, id)
	default:
		if p.wanted == nil {
			p.wanted, p.failed = map[muster.ServiceID]Port{}, map[muster.ServiceID]string{}
		}
		p.wanted[id] = *port
	}
	p.raise()
}

func (p *publisher) raise() {
	select {
	case p.due <- struct{}{}:
	default:
	}
}

// reason is why a service's port is not published; empty: it is, or has none.
func (p *publisher) reason(id muster.ServiceID) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed[id]
}

func (p *publisher) run(ctx context.Context) error {
	// What an earlier agent published stays until it is known what is wanted.
	select {
	case <-ctx.Done():
		return nil
	case <-p.m.settled:
	}
	for {
		var again <-chan time.Time
		if !p.publish(ctx) {
			again = time.After(publishRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.due:
		case <-again:
		}
	}
}

// publish publishes what is wanted, and reports whether all of it is.
func (p *publisher) publish(ctx context.Context) bool {
	p.mu.Lock()
	ports := make([]Port, 0, len(p.wanted))
	owners := map[muster.Published]muster.ServiceID{}
	for id, port := range p.wanted {
		ports = append(ports, port)
		owners[port.Published] = id
	}
	p.mu.Unlock()
	if p.m.o.Ports == nil && len(ports) == 0 {
		return true
	}
	refused := map[muster.Published]error{}
	var err error = muster.Errorf(muster.Invalid, "this node cannot publish ports")
	if p.m.o.Ports != nil {
		refused, err = p.m.o.Ports.Publish(ctx, ports)
	}
	if ctx.Err() != nil {
		return false
	}
	p.mu.Lock()
	turned := false
	for port, id := range owners {
		reason := ""
		if err != nil {
			reason = err.Error()
		} else if refused[port] != nil {
			reason = refused[port].Error()
		}
		turned = turned || p.failed[id] != reason
		if p.failed[id] = reason; reason == "" {
			delete(p.failed, id)
		}
	}
	p.mu.Unlock()
	if turned {
		p.m.o.Changed()
	}
	return err == nil && len(refused) == 0
}
