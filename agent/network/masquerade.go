package network

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// masquerade is whose addresses are hidden, and from whom they are not.
type masquerade struct {
	own    netip.Prefix
	inside []netip.Prefix // the cluster's networks
}

// Masquerade has what machines of the network own send out of the cluster, whose
// networks are the inside, come from the node's address. It holds while the
// bridge is there: at once, or from when it is made. It is a table of its own in nftables; no other one is touched.
func (n *Network) Masquerade(own netip.Prefix, inside []netip.Prefix) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hidden = &masquerade{own: own.Masked(), inside: inside}
	_, err := netlink.LinkByName(n.Bridge())
	if isNotFound(err) {
		return n.removeTable() // of a bridge that somebody else removed
	}
	if err != nil {
		return fmt.Errorf("look for bridge %s: %w", n.Bridge(), err)
	}
	return n.setTable()
}

// Unmasquerade ends it.
func (n *Network) Unmasquerade() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hidden = nil
	return n.removeTable()
}

// table is named after the bridge, so that two agents in one network namespace have two.
func (n *Network) table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "muster-" + n.Bridge()}
}

// setTable makes the table as it has to be, in one transaction, unless it is so.
func (n *Network) setTable() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("reach nftables: %w", err)
	}
	table, rules := n.table(), n.hidden.rules()
	chain := &nftables.Chain{
		Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	}
	note := n.hidden.note()
	if now, err := conn.GetRules(table, chain); err == nil && len(now) == len(rules) && allHave(now, note) {
		return nil
	}
	conn.AddTable(table)
	conn.DelTable(table) // which is no error, since it is there now
	conn.AddTable(table)
	conn.AddChain(chain)
	for _, exprs := range rules {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs, UserData: note})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("set the table %s of nftables: %w", table.Name, err)
	}
	return nil
}

func allHave(rules []*nftables.Rule, note []byte) bool {
	return !slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return !bytes.Equal(r.UserData, note) })
}

// removeTable removes the table; one that is not there is no error.
func (n *Network) removeTable() error {
	conn, err := nftables.New()
	if err != nil {
		return ifSupported(err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return ifSupported(err)
	}
	for _, table := range tables {
		if table.Name == n.table().Name {
			conn.DelTable(table)
			if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove the table %s of nftables: %w", table.Name, err)
			}
		}
	}
	return nil
}

// ifSupported is nil for what a kernel says that has no nftables, and so no table.
func ifSupported(err error) error {
	for _, not := range []error{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.EINVAL} {
		if errors.Is(err, not) {
			return nil
		}
	}
	return fmt.Errorf("list the tables of nftables: %w", err)
}

// note is the comment that the rules have: it tells whether they are those of m.
func (m *masquerade) note() []byte {
	sum := sha256.Sum256(fmt.Append(nil, m.own, m.inside))
	return userdata.AppendString(nil, userdata.TypeComment, "muster "+hex.EncodeToString(sum[:8]))
}

// rules are the chain's: `ip saddr OWN ip daddr INSIDE return` each, then `ip saddr OWN masquerade`.
func (m *masquerade) rules() [][]expr.Any {
	var all [][]expr.Any
	for _, p := range m.inside {
		all = append(all, append(append(from(m.own), to(p)...), &expr.Verdict{Kind: expr.VerdictReturn}))
	}
	return append(all, append(from(m.own), &expr.Masq{}))
}

// from and to match packets by the addresses in their header.
func from(p netip.Prefix) []expr.Any { return match(12, p) }
func to(p netip.Prefix) []expr.Any   { return match(16, p) }

func match(offset uint32, p netip.Prefix) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: net.IPv4len},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: net.IPv4len, Mask: net.CIDRMask(p.Bits(), 32), Xor: make([]byte, net.IPv4len)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}
