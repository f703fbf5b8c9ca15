package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/muster-cloud/muster"
)

// RouterOptions say what a Router takes care of. The zero value works.
type RouterOptions struct {
	NoRoutes     bool         // leave the routes to other nodes' instances to the operator; default: keep them
	NoMasquerade bool         // leave the addresses of what leaves the cluster as they are; default: the node's own
	Logger       *slog.Logger // default: none
}

// Router connects the instances of a node with those of the others, by routes of
// the node, and with what is outside of the cluster, by masquerading. What it
// set stays when the agent ends, and the next one takes it over. Its methods
// are safe for concurrent use.
type Router struct {
	network *Network
	o       RouterOptions

	mu   sync.Mutex
	made map[netip.Prefix]bool // routes that were set in this life
	told map[string]string     // by node, or hiding: what was last complained of
}

// hiding is no node's id: the masquerading.
const hiding = ""

// NewRouter returns a router for the instances of a network. It sets nothing.
func NewRouter(n *Network, o RouterOptions) *Router {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Router{network: n, o: o, made: map[netip.Prefix]bool{}, told: map[string]string{}}
}

// Route makes everything as it has to be with these peers; what is so already is
// left alone. A peer that cannot be routed to is logged, once until that
// changes. INVALID: the peers make no sense; other errors are the kernel's, and trying again may help.
func (r *Router) Route(_ context.Context, p *muster.Peers) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	own, err := netip.ParsePrefix(p.Subnet)
	if err != nil {
		return muster.InvalidField("subnet", "%.80q is no network", p.Subnet)
	}
	cluster, err := netip.ParsePrefix(p.Network)
	if err != nil {
		return muster.InvalidField("network", "%.80q is no network", p.Network)
	}
	complaints := map[string]string{}
	err = r.route(p, own, cluster, complaints)
	if failed := r.masquerade(p, own, cluster); failed != nil { // an old kernel, for example: routes are good without
		complaints[hiding] = failed.Error()
	}
	r.tell(complaints)
	return err
}

// masquerade has the network hide the instances' addresses from all but the cluster.
func (r *Router) masquerade(p *muster.Peers, own, cluster netip.Prefix) error {
	if r.o.NoMasquerade {
		return r.network.Unmasquerade()
	}
	inside := []netip.Prefix{cluster}
	for _, peer := range p.Nodes {
		// A node keeps its network when the server is given another one for all.
		if subnet, err := netip.ParsePrefix(peer.Subnet); err == nil && !cluster.Overlaps(subnet) {
			inside = append(inside, subnet.Masked())
		}
	}
	if !cluster.Overlaps(own) {
		inside = append(inside, own)
	}
	slices.SortFunc(inside, comparePrefixes)
	return r.network.Masquerade(own, slices.Compact(inside))
}

// tell logs complaints that are new or differ from the last.
func (r *Router) tell(complaints map[string]string) {
	for _, about := range slices.Sorted(maps.Keys(complaints)) {
		if r.told[about] == complaints[about] {
			continue
		}
		if about == hiding {
			r.o.Logger.Warn("instances do not reach what is outside of the cluster: their addresses cannot be masqueraded", "err", complaints[about])
		} else {
			r.o.Logger.Warn("no route to the instances of a node", "node", about, "err", complaints[about])
		}
	}
	r.told = complaints
}

// route sets the missing routes and removes those that are not wanted any more.
func (r *Router) route(p *muster.Peers, own, cluster netip.Prefix, complaints map[string]string) error {
	ours, others, err := routes()
	if err != nil {
		return err
	}
	wanted := map[netip.Prefix]hop{}
	for _, peer := range p.Nodes {
		if r.o.NoRoutes {
			break
		}
		subnet, to, err := r.hopTo(peer, own, others)
		if err != nil {
			complaints[string(peer.ID)] = err.Error()
		} else if to != nil {
			wanted[subnet] = *to
		}
	}
	var errs []error
	added, removed := 0, 0
	for dst, now := range ours {
		if _, keep := wanted[dst]; keep || !r.made[dst] && !cluster.Overlaps(dst) {
			continue // in another cluster's network, it is that of an agent beside this one
		}
		if err := now.remove(dst); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(r.made, dst)
		removed++
	}
	for dst, to := range wanted {
		if now, there := ours[dst]; !there || now != to {
			if err := to.set(dst); err != nil {
				errs = append(errs, err)
				continue
			}
			added++
		}
		r.made[dst] = true
	}
	if added+removed > 0 {
		r.o.Logger.Info("the routes to other nodes moved", "set", added, "removed", removed, "all", len(wanted))
	}
	return errors.Join(errs...)
}

// hopTo returns how the instances of a peer are reached; nil without an error: there is nothing to do for it.
func (r *Router) hopTo(peer *muster.Peer, own netip.Prefix, others []foreign) (netip.Prefix, *hop, error) {
	subnet, err := netip.ParsePrefix(peer.Subnet)
	if err != nil {
		return subnet, nil, fmt.Errorf("its network %.80q is none", peer.Subnet)
	}
	subnet = subnet.Masked()
	if subnet.Overlaps(own) {
		return subnet, nil, fmt.Errorf("its network %s is this node's own", subnet)
	}
	addr, err := netip.ParseAddr(peer.Addr)
	if err != nil || !addr.Is4() {
		return subnet, nil, fmt.Errorf("its address %.80q is no IPv4 address: route %s to it, if it is to be reached", peer.Addr, subnet)
	}
	to, err := hopOf(addr)
	if err != nil || to == nil {
		return subnet, nil, err
	}
	for _, o := range others {
		if o.dst.Overlaps(subnet) {
			return subnet, nil, fmt.Errorf("this node has the route %s already", o.text)
		}
	}
	return subnet, to, nil
}

func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}
