package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// crowd is a server with one node that has brought many machines along.
type crowd struct {
	*server
	api    *client.Client
	oracle *oracle
	node   string
}

// newCrowd registers the node: a change, and one for each of its machines.
func newCrowd(t *testing.T, machines int) *crowd {
	t.Helper()
	s := newServer(t, "--registration-publish", "noop", "--unhealthy-after", "1h", "--prune-after", "2h")
	s.start()
	input := crashNode(0)
	for k := range machines {
		input.Instances = append(input.Instances, muster.InstanceReportInput{
			Machine: fmt.Sprintf("elsewhere-i-%d-1", k+1), Epoch: "elsewhere", ID: muster.InstanceIDOf(int64(k + 1)), Generation: 1, Status: muster.Running,
		})
	}
	api := s.client()
	joined, err := api.RegisterNode(t.Context(), input)
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{server: s, api: api, oracle: newOracle(t, s.dir, joined.Server.Epoch), node: string(input.ID)}
	c.read(int64(machines + 1))
	return c
}

// read has the oracle read everything, which has to be so many changes.
func (c *crowd) read(want int64) {
	c.t.Helper()
	if err := c.oracle.read(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	if got := c.oracle.head(); got != want {
		c.t.Fatalf("there are %d changes, want %d", got, want)
	}
}

// wire connects and is acknowledged.
func (c *crowd) wire(buffer int) *wire {
	c.t.Helper()
	w, err := dialWire(c.t.Context(), strings.TrimPrefix(c.url, "http://"), buffer)
	if err == nil {
		c.t.Cleanup(func() { _ = w.ws.Close() })
		err = w.initialise()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return w
}

const (
	watchNode  = `subscription Watch($since: Cursor) { nodeChanges(since: $since) { type revision } }`
	watchState = `subscription Watch($since: Cursor) { healthChanges(since: $since) { type cursor revision at kind objectId reason actor previousStatus status left instance { id name machine status statusReason } } }`
)

// follow subscribes so many times on a wire, and waits until all are SYNCED.
func (c *crowd) follow(w *wire, streams int, query string, since func(n int) string) {
	c.t.Helper()
	for n := range streams {
		if err := w.subscribe(fmt.Sprint(n), query, map[string]any{"since": since(n)}); err != nil {
			c.t.Fatal(err)
		}
	}
	for range streams {
		if m, err := w.receive(); err != nil || !strings.Contains(string(m.Payload), `"SYNCED"`) {
			c.t.Fatalf("%v, %s instead of SYNCED", err, m.Payload)
		}
	}
}

// newest is the cursor of the newest change.
func (c *crowd) newest(int) string {
	rows, _ := c.oracle.all()
	return c.oracle.cursor(rows[len(rows)-1])
}

// heard takes the changes of so many streams from a wire, resting after each few,
// and returns the revisions that each was told.
func (c *crowd) heard(w *wire, streams, changes int, rest func()) (map[string][]int64, error) {
	told := map[string][]int64{}
	for k := range streams * changes {
		m, err := w.receive()
		if err != nil {
			return told, err
		}
		var p struct {
			Data map[string]struct {
				Type     string
				Revision int64
			}
		}
		if err := json.Unmarshal(m.Payload, &p); err != nil || m.Type != "next" {
			return told, fmt.Errorf("%w: a %s with %s", err, m.Type, m.Payload)
		}
		for _, e := range p.Data {
			told[m.ID] = append(told[m.ID], e.Revision)
		}
		if k%64 == 0 {
			rest()
		}
	}
	return told, nil
}

// wantAll compares what the streams of a wire were told with the revisions after one.
func (c *crowd) wantAll(who string, told map[string][]int64, streams int, after int64) {
	c.t.Helper()
	var want []int64
	for revision := after + 1; revision <= c.oracle.head(); revision++ {
		want = append(want, revision)
	}
	if len(told) != streams {
		c.t.Errorf("%s: %d streams were told something, want %d", who, len(told), streams)
	}
	for id, got := range told {
		if !slices.Equal(got, want) {
			c.t.Errorf("%s: stream %s was told %d changes, not the %d that there are in their order", who, id, len(got), len(want))
			return
		}
	}
}

// remove takes the node out: it and all of its machines change.
func (c *crowd) remove() {
	c.t.Helper()
	if _, err := c.api.RemoveNode(c.t.Context(), c.node); err != nil {
		c.t.Fatal(err)
	}
}

// TestWatch_OneExecutionForAll: what 1,000 subscribers who came from 1,000
// different places are told is executed once.
func TestWatch_OneExecutionForAll(t *testing.T) {
	t.Parallel()
	const sockets, each = 200, 5
	c := newCrowd(t, sockets*each)
	rows, _ := c.oracle.all()
	var wires []*wire
	for k := range sockets {
		w := c.wire(0)
		c.follow(w, each, watchNode, func(n int) string { return c.oracle.cursor(rows[1+k*each+n]) })
		wires = append(wires, w)
	}
	before := c.metrics()
	if _, err := c.api.CordonNode(t.Context(), c.node, ""); err != nil {
		t.Fatal(err)
	}
	for _, w := range wires {
		told, err := c.heard(w, each, 1, func() {})
		if err != nil {
			t.Fatal(err)
		}
		c.read(sockets*each + 2)
		c.wantAll("a subscriber", told, each, sockets*each+1)
	}
	after := c.metrics()
	for name, want := range map[string]float64{
		"muster_transport_executions_total": 1, "muster_transport_deliveries_total": sockets * each,
		`muster_transport_served_total{source="ring"}`: 1, `muster_transport_served_total{source="cache"}`: sockets*each - 1,
		`muster_transport_served_total{source="log"}`: 0, "muster_watch_published_total": 1,
	} {
		if got := after[name] - before[name]; got != want {
			t.Errorf("%s rose by %v, want %v", name, got, want)
		}
	}
}

// TestWatch_ASlowReaderIsToldAll: one socket with 100 streams that takes its time
// while a node with 500 machines goes is neither closed nor told less.
func TestWatch_ASlowReaderIsToldAll(t *testing.T) {
	t.Parallel()
	const machines, streams = 500, 100
	c := newCrowd(t, machines)
	slow, other := c.wire(256<<10), c.wire(0)
	c.follow(slow, streams, watchState, c.newest)
	c.follow(other, 1, watchState, c.newest)
	c.remove()
	told, err := c.heard(other, 1, machines+1, func() {})
	if err != nil {
		t.Fatal(err)
	}
	c.read(2 * (machines + 1))
	c.wantAll("the other one", told, 1, machines+1)
	pace := time.NewTicker(8 * time.Millisecond) // longer in all than a write may go without progress
	defer pace.Stop()
	told, err = c.heard(slow, streams, machines+1, func() { <-pace.C })
	if err != nil {
		t.Errorf("the slow one was cut off: %v", err)
	}
	c.wantAll("the slow one", told, streams, machines+1)
	if n := c.metrics(); n["muster_transport_stalled_total"] != 0 || n["muster_transport_connections"] != 2 {
		t.Errorf("%v were taken for stalled, %v are open", n["muster_transport_stalled_total"], n["muster_transport_connections"])
	}
}

// TestWatch_AClientThatReadsNothing costs the server no more than what fits into a
// socket, is closed in the end, and the others don't notice.
func TestWatch_AClientThatReadsNothing(t *testing.T) {
	t.Parallel()
	const machines, streams, others = 500, 100, 20
	c := newCrowd(t, machines)
	base := c.metrics()
	deaf := c.wire(4 << 10)
	c.follow(deaf, streams, watchState, c.newest)
	var wires []*wire
	for range others {
		w := c.wire(0)
		c.follow(w, 1, watchState, c.newest)
		wires = append(wires, w)
	}
	before := c.metrics()
	c.remove()
	var wait sync.WaitGroup
	heard := make([]map[string][]int64, others)
	for k, w := range wires {
		wait.Go(func() {
			var err error
			if heard[k], err = c.heard(w, 1, machines+1, func() {}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	c.read(2 * (machines + 1))
	for _, told := range heard {
		c.wantAll("another one", told, 1, machines+1)
	}
	// None a stream, that is; some come and go.
	if now := c.metrics()["go_goroutines"]; now > before["go_goroutines"]+streams/4 {
		t.Errorf("%v goroutines, %v before", now, before["go_goroutines"])
	}
	c.until("it is closed", func(n numbers) bool { return n["muster_transport_stalled_total"] == 1 })
	c.until("its streams are gone", func(n numbers) bool { return n["muster_transport_streams"] == others })
	// What was written to it is what a socket holds, not what it had asked for.
	written := c.metrics()["muster_transport_deliveries_total"] - before["muster_transport_deliveries_total"] - others*(machines+1)
	if written <= 0 || written > streams*(machines+1)*3/4 {
		t.Errorf("%v deliveries to the client that reads nothing, of %d", written, streams*(machines+1))
	}
	for _, w := range wires {
		_ = w.ws.Close()
	}
	_ = deaf.ws.Close()
	c.settle(base)
}

// until waits until the metrics show something.
func (s *server) until(what string, holds func(numbers) bool) numbers {
	s.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		n := s.metrics()
		if holds(n) {
			return n
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not within a minute: %s; %v goroutines, %v connections, %v WebSockets, %v streams", what,
				n["go_goroutines"], n["muster_server_connections"], n["muster_transport_connections"], n["muster_transport_streams"])
		}
	}
}

// settle waits until the server has no more of anything than at base.
func (s *server) settle(base numbers) {
	s.t.Helper()
	s.until(fmt.Sprintf("the server is back to %v goroutines and %v connections", base["go_goroutines"], base["muster_server_connections"]), func(n numbers) bool {
		return n["muster_transport_connections"] == 0 && n["muster_server_connections"] <= base["muster_server_connections"] && n["go_goroutines"] <= base["go_goroutines"]
	})
}
