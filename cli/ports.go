package cli

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/network"
)

// nodePorts leads ports of the node to services.
type nodePorts struct{ publisher *network.Publisher }

// Publish has exactly these ports lead where they say.
func (p nodePorts) Publish(_ context.Context, ports []deploy.Port) (map[muster.ServiceID]error, error) {
	owners := make([]string, len(ports))
	for i, port := range ports {
		owners[i] = string(port.Owner)
	}
	if err := p.publisher.Keep(owners); err != nil {
		return nil, err
	}
	refused := map[muster.ServiceID]error{}
	for _, port := range ports {
		if err := p.publish(port); err != nil {
			refused[port.Owner] = err
		}
	}
	return refused, nil
}

func (p nodePorts) publish(port deploy.Port) error {
	addr, err := netip.ParseAddr(port.Addr)
	if err != nil {
		return fmt.Errorf("the instance has no address: %w", err)
	}
	_, err = p.publisher.Publish(network.Publication{
		Owner: string(port.Owner), Protocol: port.Protocol, Port: port.Port, To: netip.AddrPortFrom(addr, uint16(port.To)),
	})
	return err
}
