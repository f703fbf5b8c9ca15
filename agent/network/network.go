package network

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	namespaces = "/run/netns"
	forwarding = "/proc/sys/net/ipv4/ip_forward"
)

// Network is the bridge of one agent and what hangs on it. Its methods are safe
// for concurrent use.
type Network struct {
	// Made is told what of a machine's network Add has just made: the bridge, the namespace, the pair. For tests; default none.
	Made func(what, machine string)

	key    string
	mu     sync.Mutex  // one change of the bridge at a time
	hidden *masquerade // nil: nothing is masqueraded, or it is not known yet
}

// New returns the network of a key, such as the state directory's path: the names of
// its interfaces follow from it. It makes nothing.
func New(key string) *Network { return &Network{key: key} }

// Bridge returns the name of the bridge.
func (n *Network) Bridge() string { return n.name("mb") }

// Veth returns the name of the node's end of a machine's pair.
func (n *Network) Veth(machine string) string { return n.name("mv", machine) }

// name makes an interface name of 14 bytes; 15 are allowed.
func (n *Network) name(prefix string, more ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(append(more, n.key), "\x00")))
	return prefix + hex.EncodeToString(sum[:6])
}

// Namespace returns the path of a machine's network namespace.
func Namespace(machine string) string { return filepath.Join(namespaces, machine) }

// Add makes a machine's namespace with lo and eth0 and connects it to the bridge,
// which it makes when it is missing, with gateway as its address. What an
// earlier machine of that name left is replaced. A failed Add leaves nothing of the machine.
func (n *Network) Add(machine string, addr netip.Prefix, gateway netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.remove(machine); err != nil {
		return err
	}
	err := n.add(machine, addr, gateway)
	if err != nil {
		return errors.Join(fmt.Errorf("network of %s: %w", machine, err), n.remove(machine))
	}
	return nil
}

func (n *Network) add(machine string, addr netip.Prefix, gateway netip.Addr) error {
	bridge, err := n.bridge(netip.PrefixFrom(gateway, addr.Bits()))
	if err != nil {
		return err
	}
	n.made("bridge", machine)
	ns, err := newNamespace(machine)
	if err != nil {
		return err
	}
	defer ns.Close()
	n.made("namespace", machine)
	pair := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: n.Veth(machine), MasterIndex: bridge.Attrs().Index},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(int(ns)),
	}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("add the pair %s: %w", pair.Name, err)
	}
	n.made("pair", machine)
	if err := netlink.LinkSetUp(pair); err != nil {
		return fmt.Errorf("set %s up: %w", pair.Name, err)
	}
	// Where the kernel passes bridged packets through the node's rules, as on hosts with other containers, a machine reaches
	// what it publishes itself by the port that it sends from.
	if err := netlink.LinkSetHairpin(pair, true); err != nil {
		return fmt.Errorf("set %s to hairpin: %w", pair.Name, err)
	}
	return configure(ns, addr, gateway)
}

func (n *Network) made(what, machine string) {
	if n.Made != nil {
		n.Made(what, machine)
	}
}

// bridge returns the bridge, up and with this address, making what is missing.
func (n *Network) bridge(addr netip.Prefix) (netlink.Link, error) {
	if err := n.Check(addr); err != nil {
		return nil, err
	}
	name := n.Bridge()
	link, err := netlink.LinkByName(name)
	made := isNotFound(err)
	if made {
		if err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err == nil {
			link, err = netlink.LinkByName(name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", name, err)
	}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(addr)}); err != nil {
		return nil, fmt.Errorf("address %s of bridge %s: %w", addr, name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set bridge %s up: %w", name, err)
	}
	if n.hidden != nil && made {
		_ = n.setTable() // a Router says why not, and tries again: machines are good without
	}
	return link, forward()
}

// forward has the node pass packets on, so that machines reach beyond it.
func forward() error {
	now, err := os.ReadFile(forwarding)
	if err != nil || strings.TrimSpace(string(now)) == "1" {
		return err
	}
	return os.WriteFile(forwarding, []byte("1"), 0)
}

// Delete removes what Add made for a machine; what is not there is no error.
// It may be another Network of the same key, in another process.
func (n *Network) Delete(machine string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.remove(machine)
}

func (n *Network) remove(machine string) error {
	var errs []error
	if link, err := netlink.LinkByName(n.Veth(machine)); err == nil {
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("delete %s: %w", n.Veth(machine), err))
		}
	} else if !isNotFound(err) {
		errs = append(errs, fmt.Errorf("look for %s: %w", n.Veth(machine), err))
	}
	return errors.Join(append(errs, deleteNamespace(machine))...)
}

// Clear removes the bridge and what is masqueraded for it; one that is not there, or that
// a machine hangs on, is no error.
func (n *Network) Clear() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	bridge, err := netlink.LinkByName(n.Bridge())
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for bridge %s: %w", n.Bridge(), err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		if link.Attrs().MasterIndex == bridge.Attrs().Index {
			return nil
		}
	}
	if err := netlink.LinkDel(bridge); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete bridge %s: %w", n.Bridge(), err)
	}
	return errors.Join(n.removeTable(), n.removePorts())
}

func isNotFound(err error) bool {
	_, ok := errors.AsType[netlink.LinkNotFoundError](err)
	return ok || errors.Is(err, fs.ErrNotExist)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
