package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// TestHosts has instances on three nodes of two kinds, which have joined over TLS: they reach each other, their limits
// bind, and they don't notice that their agents are upgraded, or the certificates replaced. A node's key opens nothing
// but what is the node's.
func TestHosts(t *testing.T) {
	h := newHosts(t)
	web := map[hostNode]*client.Instance{}
	run := func(name string, test func(*testing.T)) {
		if t.Failed() {
			return // what comes next stands on it
		}
		t.Run(name, func(t *testing.T) {
			h.t = t
			test(t)
		})
		h.t = t
	}
	run("instances are launched", func(*testing.T) {
		for _, n := range h.nodes() {
			web[n] = h.begin(n, muster.Nano, "mkdir /www && hostname >/www/name && exec httpd -f -p 80 -h /www")
		}
		for n, i := range web {
			web[n] = h.settle(i, muster.Running)
		}
	})
	run("they reach each other", func(t *testing.T) { h.reachEachOther(t, web) })
	run("they ask their node's name server", func(t *testing.T) { h.askNames(t, web) })
	run("limits bind", h.limitsBind)
	run("a key is stolen", h.keyStolen)
	run("the authority is replaced", h.authorityReplaced)
	run("agents are upgraded", func(t *testing.T) {
		for n := range web {
			h.upgradeUnder(t, n, web)
		}
		h.reachEachOther(t, web)
	})
	run("a key is replaced", func(t *testing.T) { h.keyReplaced(t, web[h.light[1]]) })
	run("a route is in the way", h.routeInTheWay)
	run("a certificate is renewed", h.certificateRenewed)
	run("a node goes", h.nodeGoes)
	run("a key is revoked, and its machine reinstalled", h.keyRevoked)
}

// reachEachOther has each instance fetch a page of each, by the addresses that the cluster gave them, and each node too.
func (h *hosts) reachEachOther(t *testing.T, web map[hostNode]*client.Instance) {
	for from, i := range web {
		for to, j := range web {
			fetch := fmt.Sprintf(`printf 'GET /name HTTP/1.0\r\n\r\n' | nc -w 5 %s 80 | tail -n 1`, j.Addr)
			var out []byte
			until(t, fmt.Sprintf("the instance on %s reaches that on %s", from.id(), to.id()), func() bool {
				out, _ = from.within(*i.PID, fetch).CombinedOutput()
				return string(out) == j.Name+"\n"
			})
			if out, err := from.on("busybox", "sh", "-c", fetch).CombinedOutput(); string(out) != j.Name+"\n" {
				t.Errorf("%s itself reads %q of the instance on %s, %v", from.id(), out, to.id(), err)
			}
		}
	}
}

// askNames has each instance ask for a name. The server is outside of the cluster's network and has no route to it; it
// answers with the address that it sees.
func (h *hosts) askNames(t *testing.T, web map[hostNode]*client.Instance) {
	for n, i := range web {
		node, err := h.api.Node(t.Context(), n.id())
		if err != nil {
			t.Fatal(err)
		}
		out, err := n.within(*i.PID, "nslookup who.am.i.test").CombinedOutput()
		if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "Address: "+node.Addr) {
			t.Errorf("on %s: %v, %s, want the node's address %s", n.id(), err, out, node.Addr)
		}
	}
}

// spent is what `time` says that passed and was used.
var spent = regexp.MustCompile(`real\s+0m (\d+\.\d+)s\s+user\s+0m (\d+\.\d+)s`)

func (h *hosts) limitsBind(t *testing.T) {
	kinds := []hostNode{h.light[0], h.heavy}
	spinning, greedy := map[hostNode]*client.Instance{}, map[hostNode]*client.Instance{}
	for _, n := range kinds {
		spinning[n] = h.begin(n, muster.Nano, `time timeout 4 sh -c 'while :; do :; done'; exit 0`)
		greedy[n] = h.begin(n, muster.Nano, "dd if=/dev/zero of=/dev/null bs=200M count=1")
	}
	for _, n := range kinds {
		if i := h.settle(greedy[n], muster.Failed); i.StatusReason != "out of memory" {
			t.Errorf("200 MB in a NANO on %s: %s", n.id(), i.StatusReason)
		}
		i := h.settle(spinning[n], muster.Stopped)
		said := spent.FindStringSubmatch(i.Output)
		if said == nil {
			t.Fatalf("the one that spun on %s says %q", n.id(), i.Output)
		}
		passed, err := strconv.ParseFloat(said[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		// On a machine that is busy it may get less than its quarter, never more.
		if used, err := strconv.ParseFloat(said[2], 64); err != nil || used > 0.3*passed || used < 0.02*passed {
			t.Errorf("a NANO that spun for %v s on %s used %v s, %v, want a quarter", passed, n.id(), used, err)
		}
	}
}

// upgradeUnder upgrades a node's agent. Nothing but the node changes.
func (h *hosts) upgradeUnder(t *testing.T, n hostNode, web map[hostNode]*client.Instance) {
	node := h.await(n, 1)
	before, err := h.api.ServerInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.upgrade(t)
	h.await(n, node.Incarnation+1)
	// It has looked at what runs: it takes orders.
	h.launch(n, muster.Nano, muster.Stopped, "true")
	for on, i := range web {
		now, err := h.api.Instance(t.Context(), i.ID)
		if err != nil || now.PID == nil || *now.PID != *i.PID || now.Revision != i.Revision || now.Status != muster.Running {
			t.Errorf("after the upgrade of %s the instance on %s is %+v, %v, before it %+v", n.id(), on.id(), now, err, i)
		}
		if out, err := on.within(*i.PID, "hostname").CombinedOutput(); string(out) != i.Name+"\n" {
			t.Errorf("process %d on %s is of %q, %v", *i.PID, on.id(), out, err)
		}
	}
	changes, err := h.api.Changes(t.Context(), client.ChangesInput{Since: before.Cursor, First: 100})
	if err != nil {
		t.Fatal(err)
	}
	running := func(id string) bool {
		for _, i := range web {
			if string(i.ID) == id {
				return true
			}
		}
		return false
	}
	var said []string
	for _, e := range changes.Edges {
		if c := e.Node; c.ObjectID == string(node.UID) || running(c.ObjectID) || c.Kind != muster.KindInstance {
			said = append(said, fmt.Sprintf("%s %s: %s", c.Kind, c.ObjectID, c.Reason))
		}
	}
	if want := []string{fmt.Sprintf("NODE %s: registered again", node.UID)}; !slices.Equal(said, want) {
		t.Errorf("the upgrade of %s made the changes %q, want %q", n.id(), said, want)
	}
}

// routeInTheWay has an operator route the instances' network elsewhere: nothing is launched there, and the node's routes
// make way, until that is over.
func (h *hosts) routeInTheWay(t *testing.T) {
	l := h.light[0]
	command(t, "ip", "-n", h.net.host(l.k), "route", "add", "10.213.0.0/16", "via", addressOf(hostServer))
	i := h.launch(l, muster.Nano, muster.Failed, "true")
	want := "overlaps its route 10.213.0.0/16 via " + addressOf(hostServer) + " dev eth0: give the cluster another one with --instance-network, or remove the route"
	if !strings.Contains(i.StatusReason, want) {
		t.Errorf("it has failed because %q, want %q in it", i.StatusReason, want)
	}
	until(t, "the node's own routes are gone", func() bool { return l.routes(t) == "" })
	command(t, "ip", "-n", h.net.host(l.k), "route", "del", "10.213.0.0/16")
	until(t, "they are there again", func() bool { return strings.Count(l.routes(t), "\n") == heavyHost-1 })
	h.launch(l, muster.Nano, muster.Stopped, "true")
}

// nodeGoes has a node removed: the others route to it no more.
func (h *hosts) nodeGoes(t *testing.T) {
	node := h.await(h.heavy, 1)
	to := node.Subnet + " via " + node.Addr + " dev eth0"
	for _, l := range h.light {
		if now := l.routes(t); strings.Count(now, "\n") != heavyHost-1 || !strings.Contains(now, to) {
			t.Errorf("%s has the routes %q, want one to each other node, such as %s", l.id(), now, to)
		}
	}
	h.terminateAll(t.Context())
	h.heavy.Run(t, "systemctl", "stop", "muster-agent.service")
	if _, err := h.api.RemoveNode(t.Context(), "heavy"); err != nil {
		t.Fatal(err)
	}
	for _, l := range h.light {
		until(t, l.id()+" has no route to it any more", func() bool { return !strings.Contains(l.routes(t), node.Subnet) })
		if now := l.routes(t); strings.Count(now, "\n") != heavyHost-2 {
			t.Errorf("%s has the routes %q", l.id(), now)
		}
	}
}
