package registry

import (
	"fmt"

	"github.com/muster-cloud/muster"
)

// portRange are the ports of nodes that services get which do not ask for a certain one.
type portRange struct{ from, to int }

func (p portRange) String() string { return fmt.Sprintf("%d to %d", p.from, p.to) }

func noPort(p portRange) string {
	return "every port of its node from " + p.String() + " is taken: remove services that nobody needs, or widen --publish-from and --publish-to"
}

// published walks the services on a node that have a port of it.
func (v View) published(node muster.NodeUID, protocol muster.PortProtocol, yield func(*muster.Service)) {
	for i := range rows[*muster.Instance](v, tableInstance, byNode, node) {
		for _, s := range v.servicesOf(i.ID) {
			if !s.Gone() && s.Publish != nil && s.Publish.Protocol == protocol && s.Publish.Port != 0 {
				yield(s)
			}
		}
	}
}

// freePort is the lowest port of the range that no service on the node has; 0: none.
func (v View) freePort(node muster.NodeUID, protocol muster.PortProtocol, of portRange) int {
	taken := map[int]bool{}
	v.published(node, protocol, func(s *muster.Service) { taken[s.Publish.Port] = true })
	for port := of.from; port <= of.to; port++ {
		if !taken[port] {
			return port
		}
	}
	return 0
}

// holder is the service on a node that has the port; nil: none.
func (v View) holder(node muster.NodeUID, p muster.Published) (found *muster.Service) {
	v.published(node, p.Protocol, func(s *muster.Service) {
		if s.Publish.Port == p.Port {
			found = s
		}
	})
	return found
}

// portTaken returns what speaks against a node for an instance with these services: that
// a port which one of them asks for is another's. Nil when none asks for any.
func (v View) portTaken(services []*muster.Service) func(*muster.Node) string {
	var wanted []muster.Published
	for _, s := range services {
		if s != nil && s.Publish != nil && s.Publish.Port != 0 {
			wanted = append(wanted, *s.Publish)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	return func(n *muster.Node) string {
		for _, p := range wanted {
			if other := v.holder(n.UID, p); other != nil {
				return fmt.Sprintf("its port %d is that of the service %s", p.Port, other.ID)
			}
		}
		return ""
	}
}

// portsOf are the ports that an instance's services ask for.
func (v View) portsOf(id muster.InstanceID) (ports []muster.Published) {
	for _, s := range v.servicesOf(id) {
		if s.Publish != nil && s.Publish.Port != 0 {
			ports = append(ports, *s.Publish)
		}
	}
	return ports
}
