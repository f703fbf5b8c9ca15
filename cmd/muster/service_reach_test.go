package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// addressOf6 is the IPv6 address of a host that has one.
func addressOf6(k int) string { return fmt.Sprint("fd77::", k+1) }

// heard is what a service says to a packet, or to a request for its page, from a host.
func (v *town) heard(k int, protocol, addr string) string {
	ctx, cancel := context.WithTimeout(v.t.Context(), 5*time.Second)
	defer cancel()
	conn, err := v.net.dial(ctx, k, protocol, addr)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		return err.Error()
	}
	var all strings.Builder
	for answer := make([]byte, 1000); ; {
		n, err := conn.Read(answer)
		all.Write(answer[:n])
		if err != nil || protocol == "udp" {
			break
		}
	}
	lines := strings.Split(strings.TrimSpace(all.String()), "\n")
	return lines[len(lines)-1]
}

// reachOtherwise reaches services by UDP and by IPv6, from another host and from their node.
func (v *town) reachOtherwise(t *testing.T) {
	number := map[hostNode]int{v.light[0]: 1, v.light[1]: 2, v.heavy: heavyHost}
	for n, k := range number {
		if out, err := n.on("ip", "-6", "addr", "add", addressOf6(k)+"/64", "dev", "eth0", "nodad").CombinedOutput(); err != nil {
			t.Fatalf("%s gets no address: %v: %s", n.id(), err, out)
		}
	}
	for _, n := range v.kinds {
		packets := v.deploy(n, muster.DeployServiceInput{
			Name: "packets", DeployURL: v.web + "webapp", SHA256: sumOf(v.shelf.files["webapp"]), Port: 8090,
			Env: muster.Map{"NAME": "packets"}, Publish: &muster.Published{Protocol: muster.UDP},
		})
		packets = v.become(packets, "healthy", healthy)
		program := v.running[n]["program"]
		for _, c := range []struct {
			protocol string
			of       *client.Service
		}{{"udp", packets}, {"tcp", program}} {
			port := strconv.Itoa(c.of.Publish.Port)
			for _, addr := range []string{v.addr[n], addressOf6(number[n])} {
				if got := v.heard(2, c.protocol, net.JoinHostPort(addr, port)); got != c.of.Name {
					t.Errorf("by %s to %s on %s another host hears %q, want %q", c.protocol, addr, n.id(), got, c.of.Name)
				}
			}
			if n != v.light[0] {
				continue // only a thread of its own could enter its network
			}
			for _, addr := range []string{v.addr[n], "127.0.0.1", addressOf6(number[n]), "::1"} {
				if got := v.heard(1, c.protocol, net.JoinHostPort(addr, port)); got != c.of.Name {
					t.Errorf("by %s to %s on %s its node hears %q, want %q", c.protocol, addr, n.id(), got, c.of.Name)
				}
			}
		}
		v.removeAll([]*client.Service{packets})
		if got := v.heard(2, "udp", net.JoinHostPort(v.addr[n], strconv.Itoa(packets.Publish.Port))); got == "packets" {
			t.Errorf("removed, the service on %s answers", n.id())
		}
	}
}
