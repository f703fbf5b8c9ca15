package network_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/network"
)

func ip(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "ip", args...)
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// lan connects this namespace, as 10.77.0.1/24, with another one, as 10.77.0.2. It returns that one's name.
func lan(t *testing.T, prefix string) string {
	t.Helper()
	far := prefix + "-far"
	ip(t, "netns", "add", far)
	t.Cleanup(func() { ip(t, "netns", "del", far) })
	ip(t, "link", "add", "lan0", "type", "veth", "peer", "name", "eth0", "netns", far)
	t.Cleanup(func() { ip(t, "link", "del", "lan0") })
	ip(t, "addr", "add", "10.77.0.1/24", "dev", "lan0")
	ip(t, "link", "set", "lan0", "up")
	ip(t, "link", "set", "lo", "up")
	ip(t, "-n", far, "addr", "add", "10.77.0.2/24", "dev", "eth0")
	ip(t, "-n", far, "link", "set", "eth0", "up")
	return far
}

// ours lists the routes that a router has set, sorted.
func ours(t *testing.T) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(ip(t, "route", "show", "proto", fmt.Sprint(network.Protocol))) {
		all = append(all, strings.TrimSpace(line))
	}
	slices.Sort(all)
	return all
}

func peers(nodes ...*muster.Peer) *muster.Peers {
	return &muster.Peers{Tag: "1", Network: "10.213.0.0/16", Subnet: "10.213.1.0/24", Nodes: nodes}
}

func wantRoutes(t *testing.T, when string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := ours(t); !slices.Equal(got, want) {
		t.Errorf("%s the routes are %q, want %q", when, got, want)
	}
}

func TestRouter_RoutesToNeighboursOnly(t *testing.T) {
	n, prefix := open(t)
	lan(t, prefix)
	ip(t, "route", "add", "default", "via", "10.77.0.2")
	ip(t, "route", "add", "10.213.6.0/23", "via", "10.77.0.9", "proto", "static")
	ip(t, "route", "add", "10.88.1.0/24", "via", "10.77.0.9", "proto", "213") // another cluster's agent has set it
	var log bytes.Buffer
	o := network.RouterOptions{NoMasquerade: true, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	r := network.NewRouter(n, o)
	route := func(r *network.Router, nodes ...*muster.Peer) {
		t.Helper()
		if err := r.Route(t.Context(), peers(nodes...)); err != nil {
			t.Error(err)
		}
	}
	other := "10.88.1.0/24 via 10.77.0.9 dev lan0"
	near, far := &muster.Peer{ID: "near", Addr: "10.77.0.2", Subnet: "10.213.2.0/24"}, &muster.Peer{ID: "far", Addr: "192.0.2.5", Subnet: "10.213.3.0/24"}
	all := []*muster.Peer{
		near, far,
		{ID: "here", Addr: "10.77.0.1", Subnet: "10.213.4.0/24"},
		{ID: "six", Addr: "2001:db8::1", Subnet: "10.213.5.0/24"},
		{ID: "by-hand", Addr: "10.77.0.9", Subnet: "10.213.7.0/24"},
		{ID: "double", Addr: "10.77.0.9", Subnet: "10.213.1.0/24"},
		{ID: "damaged", Addr: "10.77.0.9", Subnet: "none"},
		{ID: "old", Addr: "10.77.0.9", Subnet: "10.99.1.0/24"}, // from before the cluster had another network
	}
	for range 2 {
		route(r, all...)
		wantRoutes(t, "with all peers", other, "10.213.2.0/24 via 10.77.0.2 dev lan0", "10.99.1.0/24 via 10.77.0.9 dev lan0")
	}
	for _, want := range []string{
		`node=far err="its address 192.0.2.5 is not in a network of this node's`, `node=six`, `node=by-hand err="this node has the route 10.213.6.0/23 via 10.77.0.9 dev lan0 already"`,
		`node=double`, `node=damaged`, `"the routes to other nodes moved" set=2 removed=0 all=2`,
	} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%q was logged %d times, want once:\n%s", want, n, log.String())
		}
	}
	if strings.Contains(log.String(), "node=here") {
		t.Errorf("an agent beside this one was complained of:\n%s", log.String())
	}

	near.Addr = "10.77.0.3"
	route(r, near)
	wantRoutes(t, "when near has moved and the others have gone", other, "10.213.2.0/24 via 10.77.0.3 dev lan0")
	ip(t, "route", "flush", "10.213.2.0/24")
	route(r, near)
	wantRoutes(t, "after somebody flushed them", other, "10.213.2.0/24 via 10.77.0.3 dev lan0")
	route(network.NewRouter(n, o)) // the next agent
	wantRoutes(t, "when near went while there was no agent", other)
	route(r, near)
	o.NoRoutes = true
	route(network.NewRouter(n, o), near)
	wantRoutes(t, "once they are turned off", other)
	if by := ip(t, "route", "show", "10.213.6.0/23"); !strings.HasPrefix(by, "10.213.6.0/23 via 10.77.0.9 dev lan0 proto static") {
		t.Errorf("the operator's route is %q", by)
	}
	ip(t, "route", "del", "10.88.1.0/24")
}

// TestRouter_OwnRoutesAreNotInTheWay has a route of ours lead to what has become this node's own.
func TestRouter_OwnRoutesAreNotInTheWay(t *testing.T) {
	n, prefix := open(t)
	lan(t, prefix)
	ip(t, "route", "add", "10.213.1.0/24", "via", "10.77.0.2", "proto", "213")
	if err := n.Check(netip.MustParsePrefix("10.213.1.0/24")); err != nil {
		t.Errorf("check: %v, want it to leave that to the router", err)
	}
	if err := network.NewRouter(n, network.RouterOptions{}).Route(t.Context(), peers()); err != nil {
		t.Error(err)
	}
	wantRoutes(t, "after that")
}

// TestRouter_Masquerades looks from another host at who a machine is.
func TestRouter_Masquerades(t *testing.T) {
	n, prefix := open(t)
	far := lan(t, prefix)
	run(t, "nft", "add table ip other; add chain ip other post { type nat hook postrouting priority 90; }")
	others := run(t, "nft", "list", "table", "ip", "other")
	r := network.NewRouter(n, network.RouterOptions{})
	route := func(r *network.Router, p *muster.Peers) {
		t.Helper()
		if err := r.Route(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
	addTo := func(machine, addr string) {
		t.Helper()
		if err := n.Add(machine, netip.MustParsePrefix(addr), netip.MustParseAddr("10.213.1.1")); err != nil {
			t.Fatal(err)
		}
	}
	route(r, peers())
	if tables(t) != 0 {
		t.Error("there is a table without a bridge")
	}
	a := prefix + "-a"
	addTo(a, "10.213.1.2/24")
	ip(t, "-n", far, "addr", "add", "10.213.2.1/24", "dev", "lo")
	ip(t, "-n", far, "link", "set", "lo", "up")
	ip(t, "-n", far, "route", "add", "10.213.1.0/24", "via", "10.77.0.1")
	route(r, peers(&muster.Peer{ID: "far", Addr: "10.77.0.2", Subnet: "10.213.2.0/24"}))
	for addr, want := range map[string]string{"10.77.0.2:81": "10.77.0.1", "10.213.2.1:82": "10.213.1.2"} {
		if got := seen(t, far, addr, a); got != want {
			t.Errorf("at %s the machine is seen as %s, want %s", addr, got, want)
		}
	}
	handle := handles(t)
	route(network.NewRouter(n, network.RouterOptions{}), peers()) // the next agent
	if now := handles(t); now != handle {
		t.Errorf("the table was made anew, though it was right: %s, then %s", handle, now)
	}
	run(t, "nft", "flush", "chain", "ip", "muster-"+n.Bridge(), "postrouting")
	route(r, peers())
	if got := seen(t, far, "10.77.0.2:83", a); got != "10.77.0.1" {
		t.Errorf("after somebody flushed the rules the machine is seen as %s", got)
	}
	route(network.NewRouter(n, network.RouterOptions{NoMasquerade: true}), peers())
	if got := seen(t, far, "10.77.0.2:84", a); got != "10.213.1.2" {
		t.Errorf("once it is turned off the machine is seen as %s", got)
	}
	route(r, peers())
	remove(t, n, a)
	if err := n.Clear(); err != nil || tables(t) != 0 {
		t.Errorf("with the bridge its table should have gone: %v, %d", err, tables(t))
	}
	if now := run(t, "nft", "list", "table", "ip", "other"); now != others {
		t.Errorf("somebody else's table was %s, now %s", others, now)
	}
	run(t, "nft", "delete table ip other")
	route(r, peers())
}

// tables counts those of masquerading.
func tables(t *testing.T) int {
	t.Helper()
	return strings.Count(run(t, "nft", "list", "tables"), "table ip muster-")
}

// handles are the table's rules with their handles, which are others when it is made anew.
func handles(t *testing.T) string {
	t.Helper()
	return run(t, "nft", "-a", "list", "ruleset")
}

// seen connects from a machine to a listener elsewhere and returns who that sees.
func seen(t *testing.T, there, addr, machine string) string {
	t.Helper()
	var listener net.Listener
	within(t, there, func() (err error) {
		listener, err = net.Listen("tcp4", addr)
		return err
	})
	if listener == nil {
		t.FailNow()
	}
	defer listener.Close()
	within(t, machine, func() error {
		conn, err := net.DialTimeout("tcp4", addr, 5*time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if t.Failed() {
		return ""
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.RemoteAddr().(*net.TCPAddr).IP.String()
}
