package network

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/muster-cloud/muster"
)

// PublisherOptions say which ports a Publisher gives out. The zero value works.
type PublisherOptions struct {
	From, To int          // of the node, both included; default muster.DefaultPortFrom to muster.DefaultPortTo
	Logger   *slog.Logger // default: none
}

// Publication is a port of the node that leads to one of a machine.
type Publication struct {
	Owner    string // whose it is, such as svc-1; at most 63 bytes
	Protocol muster.PortProtocol
	Port     int            // of the node, at each of its addresses and on its loopback
	To       netip.AddrPort // the machine's; IPv4
}

// gate is what no two publications have in common.
type gate struct {
	protocol muster.PortProtocol
	port     int
}

func (p Publication) gate() gate { return gate{p.Protocol, p.Port} }

func (g gate) String() string { return fmt.Sprintf("%d/%s", g.port, g.protocol) }

// Publisher leads ports of the node to machines: for the node itself, by its addresses and by 127.0.0.1, for
// other hosts, and for machines of the node, that of the service among them. Who comes from elsewhere keeps its
// address; the node and its machines come from the bridge's. Machines have no IPv6: what comes by
// that is relayed for as long as the Publisher lives, and comes from the bridge's too.
//
// What it sets are elements of a map in a table of nftables of its own, so that nothing else is disturbed when one comes or goes.
// It stays when the agent ends, and the next Publisher of the same network takes it over. While it lives it holds the
// ports, so that no process of the node takes one. Its methods are safe for concurrent use.
type Publisher struct {
	network *Network
	o       PublisherOptions

	mu     sync.Mutex
	loaded bool
	all    map[gate]*published
	last   int // port that was given out
}

// published is a publication with what holds its port; -1: nothing does.
type published struct {
	Publication
	held int
	six  *relay // what comes by IPv6; nil: nothing does
}

// NewPublisher returns a publisher of a network's machines. It sets nothing.
func NewPublisher(n *Network, o PublisherOptions) *Publisher {
	if o.From == 0 {
		o.From, o.To = muster.DefaultPortFrom, muster.DefaultPortTo
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Publisher{network: n, o: o, all: map[gate]*published{}}
}

// Publish leads a port of the node to a machine, and returns it: the one that is asked for, or with Port 0 the one that
// the owner has already, else the next free one of the range. What the owner has led elsewhere by that protocol is replaced.
// CONFLICT: somebody else has the port, who is named. NO_CAPACITY: none of the range is free.
func (p *Publisher) Publish(want Publication) (Publication, error) {
	if err := want.validate(); err != nil {
		return Publication{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.loadLocked(); err != nil {
		return Publication{}, err
	}
	held := -1
	own := p.ownLocked(want)
	switch {
	case want.Port == 0 && own != nil:
		want.Port = own.Port
	case want.Port == 0:
		var err error
		if want.Port, held, err = p.chooseLocked(want.Protocol); err != nil {
			return Publication{}, err
		}
	}
	there := p.all[want.gate()]
	if there != nil && there.Owner != want.Owner {
		return Publication{}, muster.Errorf(muster.Conflict, "port %s of this node leads to %s: publish another one, or leave it out for any that is free", want.gate(), there.Owner)
	}
	if there == nil && held < 0 {
		var err error
		if held, err = hold(want.gate()); err != nil {
			return Publication{}, err
		}
	}
	next := &published{Publication: want, held: held}
	if there != nil {
		next.held, next.six = there.held, there.six
	}
	if err := p.replaceLocked(next, there, own); err != nil {
		return want, err
	}
	return want, next.relay()
}

func (p Publication) validate() error {
	switch {
	case p.Owner == "" || len(p.Owner) > muster.MaxNameBytes:
		return muster.InvalidField("owner", "%.80q owns nothing", p.Owner)
	case p.Protocol != muster.TCP && p.Protocol != muster.UDP:
		return muster.InvalidField("protocol", "%q is none; use TCP or UDP", p.Protocol)
	case p.Port < 0 || p.Port > 65535:
		return muster.InvalidField("port", "%d is not between 1 and 65535", p.Port)
	case !p.To.Addr().Is4() || p.To.Port() == 0:
		return muster.InvalidField("to", "%s is no IPv4 address with a port", p.To)
	}
	return nil
}

// relay has what comes by IPv6 passed on to where the publication leads.
func (p *published) relay() (err error) {
	if p.six != nil && p.six.to == p.To {
		return nil
	}
	p.six.close()
	p.six, err = newRelay(p.Publication)
	return err
}

// release lets the port go.
func (p *published) release() {
	p.six.close()
	release(p.held)
}

// replaceLocked sets a publication in place of those that there are, which may be one, or nil.
func (p *Publisher) replaceLocked(next, there, own *published) error {
	var gone []Publication
	for _, old := range []*published{there, own} {
		if old != nil && old.Publication != next.Publication && !slices.Contains(gone, old.Publication) {
			gone = append(gone, old.Publication)
		}
	}
	c := change{now: []Publication{next.Publication}, gone: gone}
	for _, other := range p.all {
		if other != there && other != own {
			c.rest = append(c.rest, other.Publication)
		}
	}
	if err := p.network.lead(c); err != nil {
		if there == nil {
			release(next.held)
		}
		return err
	}
	if own != nil && own.gate() != next.gate() {
		own.release()
		delete(p.all, own.gate())
	}
	p.all[next.gate()] = next
	return nil
}

// ownLocked returns what the owner publishes by that protocol already.
func (p *Publisher) ownLocked(want Publication) *published {
	for _, there := range p.all {
		if there.Owner == want.Owner && there.Protocol == want.Protocol {
			return there
		}
	}
	return nil
}

// chooseLocked returns the next port of the range that is free, held.
func (p *Publisher) chooseLocked(protocol muster.PortProtocol) (port, held int, err error) {
	size := p.o.To - p.o.From + 1
	for i := range size {
		port := p.o.From + (max(p.last+1, p.o.From)-p.o.From+i)%size
		g := gate{protocol, port}
		if p.all[g] != nil {
			continue
		}
		held, err := hold(g)
		if muster.CodeOf(err) == muster.Conflict {
			continue
		}
		if err != nil {
			return 0, -1, err
		}
		p.last = port
		return port, held, nil
	}
	return 0, -1, muster.Errorf(muster.NoCapacity, "no port from %d to %d is free for %s on this node: remove services that need none, or give the agent a larger range", p.o.From, p.o.To, protocol)
}

// Withdraw ends what an owner publishes. What there is not is no error.
func (p *Publisher) Withdraw(owner string) error {
	return p.keep(func(there Publication) bool { return there.Owner != owner })
}

// Keep ends what none of the owners publishes, such as what services left that were removed while no agent ran.
func (p *Publisher) Keep(owners []string) error {
	return p.keep(func(there Publication) bool { return slices.Contains(owners, there.Owner) })
}

func (p *Publisher) keep(stays func(Publication) bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.loadLocked(); err != nil {
		return err
	}
	var c change
	for _, there := range p.all {
		if stays(there.Publication) {
			c.rest = append(c.rest, there.Publication)
		} else {
			c.gone = append(c.gone, there.Publication)
		}
	}
	if len(c.gone) == 0 {
		return nil
	}
	if err := p.network.lead(c); err != nil {
		return err
	}
	for _, there := range c.gone {
		p.all[there.gate()].release()
		delete(p.all, there.gate())
	}
	if len(p.all) == 0 {
		return p.network.leadNowhere()
	}
	return nil
}

// List returns what is published, sorted by port.
func (p *Publisher) List() ([]Publication, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.loadLocked(); err != nil {
		return nil, err
	}
	all := make([]Publication, 0, len(p.all))
	for _, there := range p.all {
		all = append(all, there.Publication)
	}
	slices.SortFunc(all, func(a, b Publication) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	return all, nil
}

// Close lets go of the ports. What is published stays so.
func (p *Publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, there := range p.all {
		there.release()
	}
	p.all, p.loaded = map[gate]*published{}, false
	return nil
}

// loadLocked takes over, once, what an earlier Publisher has set.
func (p *Publisher) loadLocked() error {
	if p.loaded {
		return nil
	}
	there, err := p.network.led()
	if err != nil {
		return err
	}
	var odd error
	for _, found := range there {
		held, err := hold(found.gate())
		if err != nil { // it leads where it did all the same
			odd = errors.Join(odd, err)
			held = -1
		}
		p.all[found.gate()] = &published{Publication: found, held: held}
	}
	if odd != nil {
		p.o.Logger.Warn("a process of the node has taken a port while no agent ran; it gets nothing", "err", odd)
	}
	p.loaded = true
	return nil
}
