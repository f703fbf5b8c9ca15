package network_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/network"
)

// TestMain runs the tests in a network namespace of their own, which ends with them.
func TestMain(m *testing.M) {
	if os.Getenv("MUSTER_TEST_NETNS") == "1" {
		os.Exit(m.Run())
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), "MUSTER_TEST_NETNS=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// open returns a network that the test's end clears, and a unique prefix for names.
func open(t *testing.T) (*network.Network, string) {
	t.Helper()
	prefix := fmt.Sprintf("mtn%d", os.Getpid())
	n := network.New(t.TempDir())
	t.Cleanup(func() {
		entries, _ := os.ReadDir("/run/netns")
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), prefix) {
				t.Errorf("left: %s", entry.Name())
				if err := n.Delete(entry.Name()); err != nil {
					t.Error(err)
				}
			}
		}
		if err := n.Clear(); err != nil {
			t.Error(err)
		}
		if left := links(t); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
	return n, prefix
}

func links(t *testing.T) []string {
	t.Helper()
	all, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, link := range all {
		if link.Attrs().Name != "lo" {
			names = append(names, link.Attrs().Name)
		}
	}
	return names
}

func add(t *testing.T, n *network.Network, machine, addr string) {
	t.Helper()
	if err := n.Add(machine, netip.MustParsePrefix(addr), netip.MustParseAddr("10.99.7.1")); err != nil {
		t.Fatal(err)
	}
}

func TestNetwork_MachinesReachEachOtherAndTheNode(t *testing.T) {
	n, prefix := open(t)
	a, b := prefix+"-a", prefix+"-b"
	add(t, n, a, "10.99.7.2/24")
	add(t, n, b, "10.99.7.3/24")
	for _, c := range []struct{ server, client, addr string }{
		{a, b, "10.99.7.2:81"}, {a, "", "10.99.7.2:82"}, {"", b, "10.99.7.1:83"}, {b, b, "127.0.0.1:84"},
	} {
		var listener net.Listener
		within(t, c.server, func() (err error) {
			listener, err = net.Listen("tcp4", c.addr)
			return err
		})
		within(t, c.client, func() error {
			conn, err := net.DialTimeout("tcp4", c.addr, 5*time.Second)
			if err != nil {
				return fmt.Errorf("from %q to %q: %w", c.client, c.server, err)
			}
			return conn.Close()
		})
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); err != nil || string(text) != "1\n" {
		t.Errorf("ip_forward is %q, %v", text, err)
	}
	remove(t, n, a, b)
}

func remove(t *testing.T, n *network.Network, machines ...string) {
	t.Helper()
	for _, machine := range machines {
		for range 2 { // twice: it is idempotent
			if err := n.Delete(machine); err != nil {
				t.Errorf("delete %s: %v", machine, err)
			}
		}
	}
}

func TestNetwork_ManyAtOnceLeaveNothing(t *testing.T) {
	n, prefix := open(t)
	var group sync.WaitGroup
	for i := range 30 {
		group.Go(func() {
			name := fmt.Sprintf("%s-%d", prefix, i)
			if err := n.Add(name, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, 7, byte(2 + i)}), 24), netip.MustParseAddr("10.99.7.1")); err != nil {
				t.Error(err)
			}
			if err := n.Clear(); err != nil { // a bridge in use stays
				t.Error(err)
			}
			if err := network.New("another key").Delete(name + "x"); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := links(t); len(got) != 31 {
		t.Errorf("%d interfaces, want 30 and the bridge: %v", len(got), got)
	}
	for i := range 30 {
		remove(t, n, fmt.Sprintf("%s-%d", prefix, i))
	}
	if got := links(t); !slices.Equal(got, []string{n.Bridge()}) {
		t.Errorf("left: %v, want the bridge only", got)
	}
}

func TestNetwork_AddReplacesWhatIsLeft(t *testing.T) {
	n, prefix := open(t)
	for _, addr := range []string{"10.99.7.2/24", "10.99.7.9/24"} {
		add(t, n, prefix, addr)
	}
	remove(t, n, prefix)
	if err := os.WriteFile(network.Namespace(prefix), nil, 0o444); err != nil { // a name without a namespace
		t.Fatal(err)
	}
	add(t, n, prefix, "10.99.7.2/24")
	remove(t, n, prefix)
}

func TestNetwork_RefusesWhatARouteCovers(t *testing.T) {
	n, prefix := open(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	other := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "other0"}}
	if err := netlink.LinkAdd(other); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netlink.LinkDel(other); err != nil {
			t.Error(err)
		}
	}()
	if err := netlink.LinkSetUp(other); err != nil {
		t.Fatal(err)
	}
	// What an agent left whose state directory was removed before its instances.
	left := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "mb0123456789ab"}}
	if err := netlink.LinkAdd(left); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netlink.LinkDel(left); err != nil {
			t.Error(err)
		}
	}()
	if err := errors.Join(netlink.LinkSetUp(left), netlink.AddrAdd(left, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 70, 0, 1), Mask: net.CIDRMask(24, 32)}})); err != nil {
		t.Fatal(err)
	}
	for _, dst := range []string{"0.0.0.0/1", "128.0.0.0/1", "10.50.0.0/16", "10.60.1.8/32"} {
		_, to, err := net.ParseCIDR(dst)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: other.Index, Dst: to, Scope: netlink.SCOPE_LINK}); err != nil {
			t.Fatal(err)
		}
	}
	for subnet, route := range map[string]string{
		"10.50.3.1/24": "10.50.0.0/16 dev other0",
		"10.60.1.1/24": "10.60.1.8/32 dev other0",
		"127.0.1.1/24": "127.0.0.0/8 dev lo",
		"10.70.0.1/24": "10.70.0.0/24 dev mb0123456789ab",
		"10.99.7.1/24": "",
	} {
		err := n.Check(netip.MustParsePrefix(subnet))
		if route == "" {
			if err != nil {
				t.Errorf("%s: %v, want it accepted", subnet, err)
			}
			continue
		}
		if muster.CodeOf(err) != muster.Conflict || !strings.Contains(err.Error(), "its route "+route+":") {
			t.Errorf("%s: %v, want CONFLICT naming %q", subnet, err, route)
		}
		if told := strings.Contains(err.Error(), "run ip link delete "+left.Name+"; nft delete table ip muster-"+left.Name+"; "); told != strings.HasSuffix(route, left.Name) {
			t.Errorf("%s: told %q", subnet, err)
		}
	}
	err = n.Add(prefix, netip.MustParsePrefix("10.50.3.2/24"), netip.MustParseAddr("10.50.3.1"))
	if muster.CodeOf(err) != muster.Conflict {
		t.Errorf("add: %v, want CONFLICT", err)
	}
	if got := links(t); !slices.Equal(got, []string{other.Name, left.Name}) {
		t.Errorf("the refused machine left %v", got)
	}
}
