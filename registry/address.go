package registry

import (
	"encoding/binary"
	"net/netip"

	"github.com/muster-cloud/muster"
)

// addressesPerNode is how many instances a node's /24 has room for: not its
// network, its broadcast and its own address, which is the first.
const addressesPerNode = 253

// freeSubnet returns the first /24 of the instance network that no node has,
// the hidden ones included.
func (r *Registry) freeSubnet(v View) (string, error) {
	taken := map[string]bool{}
	for n := range v.Nodes() {
		taken[n.Subnet] = true
	}
	network := r.opts.InstanceNetwork
	base := network.Addr().As4()
	first := binary.BigEndian.Uint32(base[:])
	for k := range uint32(1) << (24 - network.Bits()) {
		var raw [4]byte
		binary.BigEndian.PutUint32(raw[:], first+k<<8)
		subnet := netip.PrefixFrom(netip.AddrFrom4(raw), 24).String()
		if !taken[subnet] {
			return subnet, nil
		}
	}
	return "", &muster.Error{
		Code: muster.Limit, Message: "the instance network " + network.String() + " has no /24 left for another node: start the server with a larger --instance-network",
		Details: map[string]any{"limit": "instance-network"},
	}
}

// freeAddress returns the first address of a node's /24 that no instance has
// or had a short while ago; "" when there is none.
func (r *Registry) freeAddress(v View, n *muster.Node) string {
	subnet, err := netip.ParsePrefix(n.Subnet)
	if err != nil {
		return ""
	}
	now, taken := r.opts.Now(), map[string]bool{}
	for i := range v.InstancesOn(n.UID) {
		rested := i.TerminatedAt != nil && now.Sub(*i.TerminatedAt) >= r.opts.AddressRest
		if !rested {
			taken[i.Addr] = true
		}
	}
	addr := subnet.Addr().Next() // the node's own
	for range addressesPerNode {
		addr = addr.Next()
		if !taken[addr.String()] {
			return addr.String()
		}
	}
	return ""
}
