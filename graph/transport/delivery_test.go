package transport_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/transport"
)

// event is what a watcher gets.
type event struct {
	ID      string
	Type    string
	Payload json.RawMessage
	event   struct {
		Type     muster.EventType
		Cursor   *string
		Revision int64
	}
}

func (c *client) event() event {
	c.t.Helper()
	var e event
	text := c.receive()
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		c.t.Fatalf("%v: %s", err, text)
	}
	if e.Type == "next" {
		var payload struct {
			Data struct{ NodeChanges json.RawMessage }
		}
		if err := json.Unmarshal(e.Payload, &payload); err != nil {
			c.t.Fatal(err)
		}
		if err := json.Unmarshal(payload.Data.NodeChanges, &e.event); err != nil {
			c.t.Fatal(err)
		}
	}
	return e
}

// watch subscribes with variables.
func (c *client) watch(id string, variables map[string]any) {
	c.t.Helper()
	b, err := json.Marshal(map[string]any{"id": id, "type": "subscribe", "payload": map[string]any{"query": nodeChanges, "variables": variables}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(string(b))
}

func cursorAt(revision int64) string {
	return muster.Cursor{Epoch: epoch, Position: muster.Position{Revision: revision, Tag: fmt.Sprintf("%016x", revision)}}.String()
}

func TestDelivery_PresentThenSyncedThenLive(t *testing.T) {
	f := newFixture(t, transport.Options{})
	f.change(3)
	c := f.connect()
	c.watch("w", nil)
	for _, want := range []string{"PRESENT 3", "PRESENT 3", "SYNCED 3", "CHANGE 4", "CHANGE 5"} {
		e := c.event()
		if got := fmt.Sprintf("%s %d", e.event.Type, e.event.Revision); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
		if (e.event.Cursor == nil) != (e.event.Type == muster.EventPresent) {
			t.Errorf("%s has the cursor %v", e.event.Type, e.event.Cursor)
		}
		if e.event.Type == muster.EventSynced {
			f.change(2)
		}
	}
}

// TestDelivery_SharesOneExecution is the promise of the transport: one change and
// 1,000 identical subscribers with 1,000 different cursors are one execution.
func TestDelivery_SharesOneExecution(t *testing.T) {
	const connections, each = 50, 20
	f := newFixture(t, transport.Options{})
	f.changeCluster(1000)
	var clients []*client
	for i := range connections {
		c := f.connect()
		for j := range each {
			c.watch(fmt.Sprint(j), map[string]any{"since": cursorAt(int64(i*each + j + 1))})
			if e := c.event(); e.event.Type != muster.EventSynced || e.event.Revision != 1000 {
				t.Fatalf("got %+v", e)
			}
		}
		clients = append(clients, c)
	}
	before := f.handler.Stats()
	if before.Streams != 1000 || before.Groups != 1 || f.resolved.Load() != 1 {
		t.Fatalf("%+v, and %d calls of the resolver", before, f.resolved.Load())
	}
	f.change(1)
	for _, c := range clients {
		for range each {
			if e := c.event(); e.event.Revision != 1001 {
				t.Fatalf("got %+v", e)
			}
		}
	}
	after := f.handler.Stats()
	if got := after.Executions - before.Executions; got != 1 {
		t.Errorf("%d executions for one change", got)
	}
	if got := after.Deliveries - before.Deliveries; got != 1000 {
		t.Errorf("%d deliveries", got)
	}
}

func TestDelivery_SharesNotWhatDiffers(t *testing.T) {
	f := newFixture(t, transport.Options{Authenticate: authenticate})
	for i, tc := range []struct{ key, query string }{
		{"ann", `subscription { nodeChanges(initial: false) { type } }`},
		{"bob", `subscription { nodeChanges(initial: false) { type } }`}, // the same role
		{"", `subscription { nodeChanges(initial: false) { type } }`},    // another role
		{"", `subscription { nodeChanges(initial: false) { type revision } }`},
		{"", `subscription { nodeChanges(initial: false, filter: {labels: {a: "b"}}) { type } }`},
	} {
		c := f.dial()
		c.send(fmt.Sprintf(`{"type":"connection_init","payload":{"key":%q}}`, tc.key))
		c.expect(`{"type":"connection_ack"}`)
		c.send(subscribe("1", tc.query))
		c.expect(`{"id":"1","type":"next"`)
		if got, want := f.handler.Stats().Groups, int64([]int{1, 1, 2, 3, 4}[i]); got != want {
			t.Errorf("after %d: %d groups, want %d", i, got, want)
		}
	}
}

func TestDelivery_Compacted(t *testing.T) {
	f := newFixture(t, transport.Options{})
	f.change(600)
	c := f.connect()
	for _, tc := range []struct{ name, since string }{
		{"another epoch", muster.Cursor{Epoch: "00000000000000bb"}.String()},
		{"above the head", cursorAt(601)},
		{"another batch", muster.Cursor{Epoch: epoch, Position: muster.Position{Revision: 500, Tag: "0000000000000001"}}.String()},
	} {
		c.watch(tc.name, map[string]any{"since": tc.since})
		got := c.expect(fmt.Sprintf(`{"id":%q,"type":"error"`, tc.name))
		if !strings.Contains(got, `"code":"COMPACTED"`) || !strings.Contains(got, `"oldest":`) {
			t.Errorf("%s: %s", tc.name, got)
		}
	}
	if got := f.handler.Stats().Streams; got != 0 {
		t.Errorf("%d streams are left", got)
	}
	c.watch("live", map[string]any{"initial": false})
	c.expect(`{"id":"live","type":"next"`)
	f.hub.Reset("00000000000000cc", muster.Position{}, muster.Position{})
	if got := c.expect(`{"id":"live","type":"error"`); !strings.Contains(got, `"code":"COMPACTED"`) {
		t.Error(got)
	}
}

// TestDelivery_ResumesWithoutGapOrDuplicate disconnects watchers at random moments,
// with and without a close, while changes are made.
func TestDelivery_ResumesWithoutGapOrDuplicate(t *testing.T) {
	const total = 3000
	f := newFixture(t, transport.Options{})
	f.change(1)
	var wait sync.WaitGroup
	for seed := range uint64(6) {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			next, since := int64(2), cursorAt(1)
			for next <= total {
				c := f.connect()
				c.watch("w", map[string]any{"since": since})
				for range 1 + random.IntN(900) {
					e := c.event()
					if e.Type != "next" || e.event.Type == muster.EventChange && e.event.Revision != next {
						t.Errorf("seed %d: got %+v instead of %d", seed, e, next)
						return
					}
					since = *e.event.Cursor
					if e.event.Type == muster.EventChange {
						next++
					}
					if next > total {
						break
					}
				}
				if random.IntN(2) == 0 {
					c.send(`{"id":"w","type":"complete"}`)
				}
				_ = c.ws.Close()
			}
		})
	}
	for range (total - 1) / 10 {
		f.change(10)
		runtime.Gosched()
	}
	f.change((total - 1) % 10)
	wait.Wait()
}

func TestDelivery_AClientThatReadsNothing(t *testing.T) {
	bothWays(t, transport.Options{WriteStall: 500 * time.Millisecond}, func(t *testing.T, f *fixture) {
		f.change(1)
		stalled, live := f.connect(), f.connect()
		for i := range 20 {
			stalled.watch(fmt.Sprint(i), map[string]any{"initial": false})
		}
		live.watch("w", map[string]any{"since": cursorAt(1)})
		live.event() // SYNCED
		within(t, 10*time.Second, "all subscribed", func() bool { return f.handler.Stats().Streams == 21 })
		revision := int64(1)
		for f.handler.Stats().Stalled == 0 {
			f.change(50)
			for range 50 {
				if e := live.event(); e.event.Revision != revision+1 {
					t.Fatalf("the live client got %d after %d", e.event.Revision, revision)
				}
				revision++
			}
			if revision > 200_000 {
				t.Fatal("the client that reads nothing was never closed")
			}
		}
		within(t, 10*time.Second, "its subscriptions are gone", func() bool { return f.handler.Stats().Streams == 1 })
	})
}

// TestDelivery_ASlowClient takes a little at a time, and longer in all than the
// time without progress that closes a connection: it is served to the end.
func TestDelivery_ASlowClient(t *testing.T) {
	const stall, total = 400 * time.Millisecond, 30_000
	bothWays(t, transport.Options{WriteStall: stall}, func(t *testing.T, f *fixture) {
		f.change(total)
		c := f.connectWith(32 << 10)
		c.watch("w", map[string]any{"since": cursorAt(1)})
		pace := time.NewTicker(stall / 8)
		defer pace.Stop()
		next := int64(2)
		for begin := time.Now(); next <= total; next++ {
			if next%500 == 0 && time.Since(begin) < 4*stall {
				<-pace.C
			}
			if e := c.event(); e.event.Revision != next {
				t.Fatalf("got %+v instead of %d", e, next)
			}
		}
		if f.handler.Stats().Stalled != 0 {
			t.Error("it was taken for stalled")
		}
	})
}

// connectWith connects with a buffer for what was not read yet, in bytes.
func (f *fixture) connectWith(buffer int) *client {
	f.t.Helper()
	dialer := websocket.Dialer{
		Subprotocols:    []string{"graphql-transport-ws"},
		TLSClientConfig: f.trust(),
		NetDial: func(network, address string) (net.Conn, error) {
			conn, err := net.Dial(network, address)
			if err == nil {
				err = conn.(*net.TCPConn).SetReadBuffer(buffer)
			}
			return conn, err
		},
	}
	ws, response, err := dialer.Dial(f.wsURL(), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = ws.Close() })
	_ = response.Body.Close()
	c := &client{t: f.t, ws: ws}
	c.send(`{"type":"connection_init"}`)
	c.expect(`{"type":"connection_ack"}`)
	return c
}

// TestDelivery_IsPulled: of a long replay to a client that reads nothing, no more
// is taken out of the log than the client has room for and a little more.
func TestDelivery_IsPulled(t *testing.T) {
	bothWays(t, transport.Options{WriteStall: 300 * time.Millisecond}, func(t *testing.T, f *fixture) {
		f.change(30_000)
		c := f.connectWith(4 << 10)
		wide := "subscription Watch($since: Cursor) { nodeChanges(since: $since) { type node { id "
		for i := range 25 {
			wide += fmt.Sprintf("a%d: labels ", i)
		}
		b, _ := json.Marshal(map[string]any{"query": wide + "} } }", "variables": map[string]any{"since": cursorAt(1)}})
		c.send(`{"id":"w","type":"subscribe","payload":` + string(b) + `}`)
		within(t, 20*time.Second, "it is closed", func() bool { return f.handler.Stats().Stalled == 1 })
		const size = 600 // of an event, a little less than it is
		if got := f.handler.Stats().Deliveries; got > 160<<10/size {
			t.Errorf("%d KiB were written", got*size>>10)
		}
	})
}

// TestConnections_HalfOpen leaves nothing behind of 200 connections that never say
// a word, and of 200 that break off in the middle.
func TestConnections_HalfOpen(t *testing.T) {
	f := newFixture(t, transport.Options{InitTimeout: 200 * time.Millisecond})
	f.connect()
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for _, breakOff := range []bool{false, true} {
		for i := range 200 {
			ws, response, err := (&websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}).Dial(f.wsURL(), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			switch {
			case breakOff && i%2 == 0:
				_ = ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"connection_init","payload":"x"}`))
				_ = ws.Close()
			case breakOff:
				_ = ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"connection_init"}`))
				_ = ws.WriteMessage(websocket.TextMessage, []byte(subscribe("1", nodeChanges)))
				_ = ws.Close()
			default:
				defer func() { _ = ws.Close() }()
			}
		}
	}
	within(t, 20*time.Second, "one connection is left", func() bool { return f.handler.Stats().Connections == 1 })
	within(t, 20*time.Second, "goroutines are back to base", func() bool { return runtime.NumGoroutine() <= goroutines })
	if s := f.handler.Stats(); s.Streams != 0 || s.Groups != 0 {
		t.Errorf("left over: %+v", s)
	}
	if got := openFiles(t); got > files+200 { // the clients' own ends of the silent ones
		t.Errorf("%d files are open, %d before", got, files)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
