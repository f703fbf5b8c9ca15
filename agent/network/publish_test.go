package network_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/network"
)

// nodeAddr is the node's own address, on a wire to another host.
const (
	nodeAddr  = "192.0.2.1"
	otherAddr = "192.0.2.9"
	nodeAddr6 = "2001:db8::1"
)

// wire connects the node with another host, which is a namespace of that name.
func wire(t *testing.T, other string) {
	t.Helper()
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	cmd := exec.Command("ip", "netns", "add", other)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", other).Run() })
	for _, args := range []string{
		"link set lo up",
		"link add wire0 type veth peer name wire1 netns " + other,
		"addr add " + nodeAddr + "/24 dev wire0",
		"addr add " + nodeAddr6 + "/64 dev wire0 nodad",
		"link set wire0 up",
		"-n " + other + " addr add " + otherAddr + "/24 dev wire1",
		"-n " + other + " addr add 2001:db8::9/64 dev wire1 nodad",
		"-n " + other + " link set wire1 up",
		"-n " + other + " link set lo up",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("wire0"); err == nil {
			_ = netlink.LinkDel(link)
		}
	})
}

// echo serves in a machine, by TCP and UDP: it answers with its name and whom it was asked by.
func echo(t *testing.T, machine, addr string) {
	t.Helper()
	var listener net.Listener
	var packets net.PacketConn
	within(t, machine, func() (err error) {
		if listener, err = net.Listen("tcp4", addr); err == nil {
			packets, err = net.ListenPacket("udp4", addr)
		}
		return err
	})
	t.Cleanup(func() { listener.Close(); packets.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
			fmt.Fprintf(conn, "%s %s\n", machine, host)
			conn.Close()
		}
	}()
	go func() {
		buf := make([]byte, 100)
		for {
			_, from, err := packets.ReadFrom(buf)
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			_, _ = packets.WriteTo(fmt.Appendf(nil, "%s %s\n", machine, host), from)
		}
	}()
}

// ask returns the answer that a place gets at an address.
func ask(t *testing.T, from, protocol, addr string) (answer string, err error) {
	t.Helper()
	within(t, from, func() error {
		var conn net.Conn
		if conn, err = net.DialTimeout(protocol, addr, 2*time.Second); err != nil {
			return nil
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
		if protocol == "udp" {
			if _, err = io.WriteString(conn, "?"); err != nil {
				return nil
			}
		}
		answer, err = bufio.NewReader(conn).ReadString('\n')
		return nil
	})
	return strings.TrimSpace(answer), err
}

func publish(t *testing.T, p *network.Publisher, owner string, protocol muster.PortProtocol, port int, to string) network.Publication {
	t.Helper()
	got, err := p.Publish(network.Publication{Owner: owner, Protocol: protocol, Port: port, To: netip.MustParseAddrPort(to)})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// portTables returns the names of the tables that there are.
func portTables(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "tables").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestPublisher_FromEverywhere asks a published port from the node by its address and its loopback, from another
// host, and from machines, the server itself among them.
func TestPublisher_FromEverywhere(t *testing.T) {
	t.Run("as it is", everywhere)
	t.Run("with bridged packets past the node's rules", func(t *testing.T) {
		const setting = "/proc/sys/net/bridge/bridge-nf-call-iptables" // of this namespace; absent: never otherwise
		before, err := os.ReadFile(setting)
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		if err := errors.Join(err, os.WriteFile(setting, []byte("0"), 0)); err != nil {
			t.Fatal(err)
		}
		defer os.WriteFile(setting, before, 0)
		everywhere(t)
	})
}

func everywhere(t *testing.T) {
	n, prefix := open(t)
	a, b, other := prefix+"-a", prefix+"-b", prefix+"-other"
	add(t, n, a, "10.99.7.2/24")
	add(t, n, b, "10.99.7.3/24")
	wire(t, other)
	echo(t, a, "10.99.7.2:8080")
	p := network.NewPublisher(n, network.PublisherOptions{})
	defer p.Close()
	publish(t, p, "svc-1", muster.TCP, 30080, "10.99.7.2:8080")
	publish(t, p, "svc-1", muster.UDP, 30053, "10.99.7.2:8080")
	for _, c := range []struct{ from, at, seen string }{
		{"", nodeAddr, nodeAddr},
		{"", "127.0.0.1", "10.99.7.1"},
		{"", "10.99.7.1", "10.99.7.1"},
		{other, nodeAddr, otherAddr}, // it keeps its address
		{b, nodeAddr, "10.99.7.1"},
		{b, "10.99.7.1", "10.99.7.1"},
		{a, nodeAddr, "10.99.7.1"},
		{"", "::1", "10.99.7.1"}, // by IPv6 it is relayed
		{"", nodeAddr6, "10.99.7.1"},
		{other, nodeAddr6, "10.99.7.1"},
	} {
		for protocol, port := range map[string]string{"tcp": "30080", "udp": "30053"} {
			got, err := ask(t, c.from, protocol, net.JoinHostPort(c.at, port))
			if err != nil || got != a+" "+c.seen {
				t.Errorf("from %q to %s by %s: %q, %v, want %q", c.from, c.at, protocol, got, err, a+" "+c.seen)
			}
		}
	}
	if _, err := ask(t, other, "tcp", nodeAddr+":30081"); err == nil {
		t.Error("a port that is not published leads somewhere")
	}
	if err := p.Withdraw("svc-1"); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{nodeAddr, nodeAddr6} {
		if got, err := ask(t, other, "tcp", net.JoinHostPort(at, "30080")); err == nil {
			t.Errorf("what was withdrawn answers %q at %s", got, at)
		}
	}
	if got := portTables(t); got != "" {
		t.Errorf("left: %s", got)
	}
	remove(t, n, a, b)
}

// TestPublisher_LoopbackIsTheNodesOwn has a machine send to the node's loopback.
func TestPublisher_LoopbackIsTheNodesOwn(t *testing.T) {
	n, prefix := open(t)
	a := prefix + "-a"
	add(t, n, a, "10.99.7.2/24")
	wire(t, prefix+"-other")
	p := network.NewPublisher(n, network.PublisherOptions{})
	defer p.Close()
	publish(t, p, "svc-1", muster.TCP, 30080, "10.99.7.2:8080")
	echo(t, "", "127.0.0.1:9999") // of the node
	within(t, a, func() error {
		// Root of a machine cannot, but one that could send to the bridge what it likes would route so.
		for _, args := range []string{"addr del 127.0.0.1/8 dev lo", "route add 127.0.0.0/8 via 10.99.7.1 dev eth0 src 10.99.7.2", "route del local 127.0.0.0/8 dev lo table local"} {
			_, _ = exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		}
		return os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("1"), 0)
	})
	if got, err := ask(t, a, "tcp", "127.0.0.1:9999"); err == nil {
		t.Errorf("the node's loopback answers a machine: %q", got)
	}
	if err := p.Withdraw("svc-1"); err != nil {
		t.Fatal(err)
	}
	remove(t, n, a)
}

func TestPublisher_GivesOutAndRefuses(t *testing.T) {
	n, prefix := open(t)
	add(t, n, prefix, "10.99.7.2/24")
	p := network.NewPublisher(n, network.PublisherOptions{From: 30010, To: 30013})
	defer p.Close()
	taken, err := net.Listen("tcp", "0.0.0.0:30011") // a process of the node
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	refused := func(owner string, port int, code muster.Code, message string) {
		t.Helper()
		_, err := p.Publish(network.Publication{Owner: owner, Protocol: muster.TCP, Port: port, To: netip.MustParseAddrPort("10.99.7.2:1")})
		if muster.CodeOf(err) != code || !strings.Contains(err.Error(), message) {
			t.Errorf("%s at %d: %v, want %s saying %q", owner, port, err, code, message)
		}
	}
	var ports []int
	for _, owner := range []string{"svc-1", "svc-2", "svc-3"} {
		ports = append(ports, publish(t, p, owner, muster.TCP, 0, "10.99.7.2:1").Port)
	}
	if !slices.Equal(ports, []int{30010, 30012, 30013}) {
		t.Errorf("given out: %v", ports)
	}
	refused("svc-4", 0, muster.NoCapacity, "no port from 30010 to 30013")
	refused("svc-4", 30012, muster.Conflict, "port 30012/TCP of this node leads to svc-2")
	refused("svc-4", 30011, muster.Conflict, "a process of this node has port 30011/TCP")
	refused("", 30014, muster.Invalid, "owns nothing")
	refused("svc-4", 65536, muster.Invalid, "65536")
	if again := publish(t, p, "svc-2", muster.TCP, 0, "10.99.7.2:2"); again.Port != 30012 || again.To.Port() != 2 {
		t.Errorf("asked again: %+v", again)
	}
	publish(t, p, "svc-4", muster.UDP, 30012, "10.99.7.2:1") // another protocol is another port
	if listener, err := net.Listen("tcp", ":30012"); err == nil {
		t.Error("a process of the node gets a port that is published")
		listener.Close()
	}
	if err := p.Withdraw("svc-2"); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", ":30012")
	if err != nil {
		t.Errorf("a port that was withdrawn: %v", err)
	} else {
		listener.Close()
	}
	if moved := publish(t, p, "svc-1", muster.TCP, 30012, "10.99.7.2:1"); moved.Port != 30012 {
		t.Errorf("moved: %+v", moved)
	}
	if got := publish(t, p, "svc-5", muster.TCP, 0, "10.99.7.2:1"); got.Port != 30010 {
		t.Errorf("what svc-1 left is not given out: %+v", got)
	}
	if err := p.Keep(nil); err != nil {
		t.Fatal(err)
	}
	if all, err := p.List(); err != nil || len(all) != 0 || portTables(t) != "" {
		t.Errorf("left: %v, %v, %s", all, err, portTables(t))
	}
	remove(t, n, prefix)
}

// TestPublisher_IsTakenOver has a second publisher on the same network, as when the agent restarts.
func TestPublisher_IsTakenOver(t *testing.T) {
	n, prefix := open(t)
	add(t, n, prefix, "10.99.7.2/24")
	wire(t, prefix+"-other")
	echo(t, prefix, "10.99.7.2:8080")
	p := network.NewPublisher(n, network.PublisherOptions{})
	first := publish(t, p, "svc-1", muster.TCP, 0, "10.99.7.2:8080")
	publish(t, p, "svc-2", muster.UDP, 30999, "10.99.7.2:8080")
	before, err := p.List()
	if err := errors.Join(err, p.Close(), p.Close()); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, "", "tcp", fmt.Sprintf("%s:%d", nodeAddr, first.Port)); err != nil || !strings.HasPrefix(got, prefix) {
		t.Errorf("without a publisher: %q, %v", got, err)
	}
	next := network.NewPublisher(n, network.PublisherOptions{})
	defer next.Close()
	after, err := next.List()
	if err != nil || !slices.Equal(before, after) {
		t.Errorf("taken over: %v, %v, want %v", after, err, before)
	}
	if again := publish(t, next, "svc-1", muster.TCP, 0, "10.99.7.2:8080"); again != first {
		t.Errorf("asked again: %+v, want %+v", again, first)
	}
	if err := next.Keep([]string{"svc-1"}); err != nil {
		t.Fatal(err)
	}
	if after, err = next.List(); err != nil || !slices.Equal(after, []network.Publication{first}) {
		t.Errorf("kept: %v, %v", after, err)
	}
	// Beside it, masquerading comes and goes.
	own := netip.MustParsePrefix("10.99.7.0/24")
	if err := errors.Join(n.Masquerade(own, []netip.Prefix{own}), n.Unmasquerade()); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, "", "tcp", fmt.Sprintf("127.0.0.1:%d", first.Port)); err != nil || !strings.HasPrefix(got, prefix) {
		t.Errorf("after masquerading: %q, %v", got, err)
	}
	if err := next.Withdraw("svc-1"); err != nil {
		t.Fatal(err)
	}
	// What is published holds again after everything was gone, as when all machines were stopped.
	publish(t, next, "svc-1", muster.TCP, first.Port, "10.99.7.2:8080")
	publish(t, next, "svc-2", muster.TCP, 30998, "10.99.7.2:8080")
	remove(t, n, prefix)
	if err := n.Clear(); err != nil || portTables(t) != "" {
		t.Errorf("with the bridge its table should have gone: %v, %s", err, portTables(t))
	}
	add(t, n, prefix, "10.99.7.2/24")
	echo(t, prefix, "10.99.7.2:8080")
	publish(t, next, "svc-1", muster.TCP, first.Port, "10.99.7.2:8080")
	for _, port := range []int{first.Port, 30998} {
		if got, err := ask(t, "", "tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil || !strings.HasPrefix(got, prefix) {
			t.Errorf("port %d after everything was gone: %q, %v", port, got, err)
		}
	}
	if err := next.Keep(nil); err != nil {
		t.Fatal(err)
	}
	remove(t, n, prefix)
	if err := n.Clear(); err != nil {
		t.Fatal(err)
	}
	_, err = next.Publish(network.Publication{Owner: "svc-1", Protocol: muster.TCP, To: netip.MustParseAddrPort("10.99.7.2:1")})
	if muster.CodeOf(err) != muster.Conflict || portTables(t) != "" {
		t.Errorf("without a machine: %v, %s", err, portTables(t))
	}
}
