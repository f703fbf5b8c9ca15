package network

import (
	"fmt"
	"net/netip"
	"regexp"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// Check refuses a subnet that the node already has a route or an address in:
// CONFLICT, naming it. Routes of the own bridge don't count, nor do those of a
// Router, which removes what is in the way, nor default routes.
func (n *Network) Check(subnet netip.Prefix) error {
	subnet = subnet.Masked()
	own := 0
	if bridge, err := netlink.LinkByName(n.Bridge()); err == nil {
		own = bridge.Attrs().Index
	} else if !isNotFound(err) {
		return fmt.Errorf("look for bridge %s: %w", n.Bridge(), err)
	}
	// All tables: policy routing, as VPNs use it, counts as well.
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		if own != 0 && route.LinkIndex == own || route.Protocol == Protocol {
			continue
		}
		if dst, ok := destination(route); ok && dst.Overlaps(subnet) {
			return muster.Errorf(muster.Conflict, "the network %s of this node's instances overlaps its route %s: %s", subnet, describe(dst, route), remedy(route))
		}
	}
	return nil
}

// anyBridge is the name of a bridge that an agent made.
var anyBridge = regexp.MustCompile(`^mb[0-9a-f]{12}$`)

// remedy is what to do about a route that is in the way. That of another agent's bridge is left
// where its state directory was removed before its instances.
func remedy(route netlink.Route) string {
	link, err := netlink.LinkByIndex(route.LinkIndex)
	if err != nil || link.Type() != "bridge" || !anyBridge.MatchString(link.Attrs().Name) {
		return "give the cluster another one with --instance-network, or remove the route"
	}
	return fmt.Sprintf("that is the network of another muster on this machine; give this cluster another one with --instance-network, or, where the other is gone, run ip link delete %[1]s; nft delete table ip muster-%[1]s; nft delete table ip muster-%[1]s-ports", link.Attrs().Name)
}

func describe(dst netip.Prefix, route netlink.Route) string {
	text := dst.String()
	if route.Gw != nil {
		text += " via " + route.Gw.String()
	}
	if link, err := netlink.LinkByIndex(route.LinkIndex); err == nil {
		text += " dev " + link.Attrs().Name
	}
	return text
}
