package network

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Protocol marks the routes that a Router sets, as `ip route show proto 213` lists
// them. No routing daemon has that number.
const Protocol = 213

// hop is where a route leads.
type hop struct {
	gateway netip.Addr
	link    int
}

// foreign is a route that somebody else has set.
type foreign struct {
	dst  netip.Prefix
	text string
}

// routes returns what the node routes: ours, and the others, but for default ones.
func routes() (ours map[netip.Prefix]hop, others []foreign, err error) {
	all, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	ours = map[netip.Prefix]hop{}
	for _, route := range all {
		dst, ok := destination(route)
		switch {
		case !ok:
		case route.Protocol == Protocol:
			gateway, _ := netip.AddrFromSlice(route.Gw)
			ours[dst] = hop{gateway: gateway.Unmap(), link: route.LinkIndex}
		default:
			others = append(others, foreign{dst: dst, text: describe(dst, route)})
		}
	}
	return ours, others, nil
}

// destination is where a route leads to; a default route has none. A VPN that takes
// all traffic spells that as two halves.
func destination(route netlink.Route) (netip.Prefix, bool) {
	if route.Dst == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(route.Dst.IP)
	bits, _ := route.Dst.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits), ok && bits > 1
}

// hopOf returns the hop to a node that is in a network of this one's. An address of
// this machine itself needs none: nil.
func hopOf(addr netip.Addr) (*hop, error) {
	found, err := netlink.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err == nil && len(found) == 0 {
		err = unix.EHOSTUNREACH
	}
	if err != nil {
		return nil, fmt.Errorf("this node has no route to its address %s: %w", addr, err)
	}
	route := found[0]
	_, direct := destination(route)
	switch {
	case route.Type == unix.RTN_LOCAL:
		return nil, nil
	case route.Type != unix.RTN_UNICAST || route.Gw != nil || route.Via != nil || len(route.MultiPath) > 0 || !direct:
		return nil, fmt.Errorf("its address %s is not in a network of this node's: routes between them are for you to make", addr)
	}
	return &hop{gateway: addr, link: route.LinkIndex}, nil
}

// set makes a route lead to the hop.
func (h hop) set(dst netip.Prefix) error {
	if err := netlink.RouteReplace(h.route(dst)); err != nil {
		return fmt.Errorf("route %s via %s: %w", dst, h.gateway, err)
	}
	return nil
}

// remove removes the route; one that has gone meanwhile is no error.
func (h hop) remove(dst netip.Prefix) error {
	if err := netlink.RouteDel(h.route(dst)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove the route %s via %s: %w", dst, h.gateway, err)
	}
	return nil
}

func (h hop) route(dst netip.Prefix) *netlink.Route {
	return &netlink.Route{Dst: ipNet(dst), Gw: h.gateway.AsSlice(), LinkIndex: h.link, Protocol: Protocol}
}
