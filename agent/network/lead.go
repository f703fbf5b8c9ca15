package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// The registers of a rule that looks a port up: a key of protocol and port, and then what is found, an address
// and a port, begin at the same place.
const (
	wide   = unix.NFT_REG_1
	first  = unix.NFT_REG32_00
	second = unix.NFT_REG32_00 + 1
)

// ports is the table of what is published, beside that of masquerading, which is made anew when that changes.
func (n *Network) ports() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "muster-" + n.Bridge() + "-ports"}
}

// portMap is the map in the table: protocol . port : address . port.
func (n *Network) portMap() *nftables.Set {
	return &nftables.Set{
		Table: n.ports(), Name: "ports", IsMap: true, Concatenation: true,
		KeyType:  nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		DataType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService),
	}
}

// change is how what is published becomes other.
type change struct {
	now, gone []Publication
	rest      []Publication // that stay as they are
}

// lead changes in one transaction where ports lead, and makes the table anew if it is missing or for another network.
func (n *Network) lead(c change) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(c.now) > 0 {
		if err := n.admitLoopback(); err != nil {
			return err
		}
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("reach nftables: %w", err)
	}
	there, err := n.hasPorts(conn)
	if err != nil {
		return err
	}
	beside, err := n.beside()
	if err != nil {
		return err
	}
	ports := n.portMap()
	switch {
	case !there || len(c.now) > 0 && !n.portsFit(conn, beside):
		err = n.addPorts(conn, ports, beside)
		c.now = append(c.now, c.rest...)
	case len(c.gone) > 0:
		err = conn.SetDeleteElements(ports, keys(elements(c.gone)))
	}
	if err == nil && len(c.now) > 0 {
		err = conn.SetAddElements(ports, elements(c.now))
	}
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		return fmt.Errorf("set where ports lead, in the table %s of nftables: %w", ports.Table.Name, err)
	}
	for _, p := range c.gone {
		forgetFlows(p)
	}
	return nil
}

// beside returns the networks of the bridge, where its machines are.
func (n *Network) beside() ([]netip.Prefix, error) {
	link, err := netlink.LinkByName(n.Bridge())
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for bridge %s: %w", n.Bridge(), err)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("addresses of bridge %s: %w", n.Bridge(), err)
	}
	var all []netip.Prefix
	for _, addr := range addrs {
		ip, _ := netip.AddrFromSlice(addr.IP.To4())
		bits, _ := addr.Mask.Size()
		all = append(all, netip.PrefixFrom(ip, bits).Masked())
	}
	return all, nil
}

// portsFit reports whether the table is for these networks.
func (n *Network) portsFit(conn *nftables.Conn, beside []netip.Prefix) bool {
	rules, err := conn.GetRules(n.ports(), &nftables.Chain{Name: postrouting, Table: n.ports()})
	return err == nil && len(rules) == 1+len(beside) && allHave(rules, noteOf(beside))
}

func noteOf(beside []netip.Prefix) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, fmt.Sprint("muster ", beside))
}

// elements are the map's for publications.
func elements(all []Publication) []nftables.SetElement {
	var made []nftables.SetElement
	for _, p := range all {
		key, value := make([]byte, 8), make([]byte, 8)
		key[0] = protocolNumber(p.Protocol)
		binary.BigEndian.PutUint16(key[4:], uint16(p.Port))
		copy(value, p.To.Addr().AsSlice())
		binary.BigEndian.PutUint16(value[4:], p.To.Port())
		made = append(made, nftables.SetElement{Key: key, Val: value, Comment: p.Owner})
	}
	return made
}

// keys are elements without what they lead to.
func keys(all []nftables.SetElement) []nftables.SetElement {
	for i := range all {
		all[i] = nftables.SetElement{Key: all[i].Key}
	}
	return all
}

func protocolNumber(p muster.PortProtocol) byte {
	if p == muster.UDP {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// led returns where ports lead now.
func (n *Network) led() ([]Publication, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, ifSupported(err)
	}
	there, err := n.hasPorts(conn)
	if err != nil || !there {
		return nil, err
	}
	found, err := conn.GetSetElements(n.portMap())
	if err != nil {
		return nil, fmt.Errorf("read where ports lead, in the table %s of nftables: %w", n.ports().Name, err)
	}
	var all []Publication
	for _, e := range found {
		if len(e.Key) < 6 || len(e.Val) < 6 {
			continue
		}
		p := Publication{Owner: e.Comment, Protocol: muster.TCP, Port: int(binary.BigEndian.Uint16(e.Key[4:]))}
		if e.Key[0] == unix.IPPROTO_UDP {
			p.Protocol = muster.UDP
		}
		p.To = netip.AddrPortFrom(netip.AddrFrom4([4]byte(e.Val[:4])), binary.BigEndian.Uint16(e.Val[4:]))
		all = append(all, p)
	}
	return all, nil
}

func (n *Network) hasPorts(conn *nftables.Conn) (bool, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return false, ifSupported(err)
	}
	for _, table := range tables {
		if table.Name == n.ports().Name {
			return true, nil
		}
	}
	return false, nil
}

// leadNowhere removes the table.
func (n *Network) leadNowhere() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.removePorts()
}

func (n *Network) removePorts() error {
	conn, err := nftables.New()
	if err != nil {
		return ifSupported(err)
	}
	conn.DelTable(n.ports())
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the table %s of nftables: %w", n.ports().Name, err)
	}
	return nil
}

// admitLoopback lets packets from 127.0.0.1 out to the bridge, which is how the node reaches what it publishes by its own
// loopback. The table keeps machines from sending to the node's loopback in turn.
func (n *Network) admitLoopback() error {
	path := "/proc/sys/net/ipv4/conf/" + n.Bridge() + "/route_localnet"
	err := os.WriteFile(path, []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return muster.Errorf(muster.Conflict, "no machine of this node runs that a port could lead to: start the instance first")
	}
	return err
}

// forgetFlows ends what the kernel remembers of packets that went to a port: those of a stream without connections would be
// led on where they were.
func forgetFlows(p Publication) {
	if p.Protocol == muster.UDP {
		_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, flows(p)) // they end by themselves too
	}
}

// flows selects what was led to a publication.
type flows Publication

// MatchConntrackFlow implements netlink's filter.
func (f flows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	return flow.Forward.Protocol == protocolNumber(f.Protocol) && int(flow.Forward.DstPort) == f.Port &&
		flow.Reverse.SrcIP.Equal(f.To.Addr().AsSlice())
}

// postrouting is the chain that says what of published ports is masqueraded.
const postrouting = "postrouting"

// addPorts makes the table with its map and its chains, in place of one that is there.
func (n *Network) addPorts(conn *nftables.Conn, ports *nftables.Set, beside []netip.Prefix) error {
	table := conn.AddTable(ports.Table)
	conn.DelTable(table) // which is no error, since it is there now
	conn.AddTable(table)
	if err := conn.AddSet(ports, nil); err != nil {
		return err
	}
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: kind, Hooknum: hook, Priority: priority})
	}
	rule := func(c *nftables.Chain, exprs ...[]expr.Any) {
		conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: slices.Concat(exprs...), UserData: noteOf(beside)})
	}
	for _, c := range []*nftables.Chain{
		chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest),
		chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest),
	} {
		rule(c, toThisNode(), lookUp(ports))
	}
	// What comes from the node's loopback or from beside the machine has to come back through the node.
	back := chain(postrouting, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for _, sender := range append([]netip.Prefix{loopback()}, beside...) {
		rule(back, interfaceIs(expr.MetaKeyOIFNAME, n.Bridge()), wasLed(), from(sender), []expr.Any{&expr.Masq{}})
	}
	raw := chain("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	rule(raw, interfaceIs(expr.MetaKeyIIFNAME, n.Bridge()), to(loopback()), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})
	return nil
}

func loopback() netip.Prefix { return netip.MustParsePrefix("127.0.0.0/8") }

// toThisNode matches packets to one of the node's own addresses.
func toThisNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: wide, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: wide, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// lookUp leads a packet to where the map says for its protocol and port, if that says anything.
func lookUp(ports *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first},
		&expr.Payload{DestRegister: second, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: wide, DestRegister: wide, IsDestRegSet: true, SetName: ports.Name, SetID: ports.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: first, RegProtoMin: second},
	}
}

func interfaceIs(key expr.MetaKey, name string) []expr.Any {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return []expr.Any{&expr.Meta{Key: key, Register: wide}, &expr.Cmp{Op: expr.CmpOpEq, Register: wide, Data: data}}
}

// wasLed matches packets whose destination was exchanged.
func wasLed() []expr.Any {
	const dstNAT = 1 << 5 // IPS_DST_NAT
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: wide},
		&expr.Bitwise{SourceRegister: wide, DestRegister: wide, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(dstNAT), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: wide, Data: make([]byte, 4)},
	}
}
