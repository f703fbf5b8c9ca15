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
	tried  map[muster.ServiceID]Port // what was published, or could not be
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
		delete(p.tried, id)
	default:
		if p.wanted == nil {
			p.wanted, p.failed, p.tried = map[muster.ServiceID]Port{}, map[muster.ServiceID]string{}, map[muster.ServiceID]Port{}
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

// outcome is why a service's port is not published, empty: it is, or has none; tried is
// false while that is not known yet.
func (p *publisher) outcome(id muster.ServiceID) (reason string, tried bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted, has := p.wanted[id]
	return p.failed[id], !has || p.tried[id] == wanted
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
	for _, port := range p.wanted {
		ports = append(ports, port)
	}
	p.mu.Unlock()
	if p.m.o.Ports == nil && len(ports) == 0 {
		return true
	}
	refused := map[muster.ServiceID]error{}
	var err error = muster.Errorf(muster.Invalid, "this node cannot publish ports")
	if p.m.o.Ports != nil {
		refused, err = p.m.o.Ports.Publish(ctx, ports)
	}
	if ctx.Err() != nil {
		return false
	}
	p.mu.Lock()
	turned := false
	for _, port := range ports {
		id, reason := port.Owner, ""
		if err != nil {
			reason = err.Error()
		} else if refused[id] != nil {
			reason = refused[id].Error()
		}
		if p.wanted[id] != port {
			continue // meanwhile another is wanted, or none
		}
		turned = turned || p.failed[id] != reason || p.tried[id] != port
		p.tried[id] = port
		if p.failed[id] = reason; reason == "" {
			delete(p.failed, id)
		}
	}
	p.mu.Unlock()
	if turned {
		p.m.lookAtAll()
	}
	return err == nil && len(refused) == 0
}
