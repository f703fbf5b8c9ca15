package transport_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/transport"
)

func subscribe(id, query string) string {
	b, _ := json.Marshal(map[string]any{"id": id, "type": "subscribe", "payload": map[string]any{"query": query}})
	return string(b)
}

// A step sends a text, or expects the beginning of one when it starts with "<".
func TestWebSocket_Conversations(t *testing.T) {
	const live = `subscription { nodeChanges(initial: false) { type } }`
	const init, ack = `{"type":"connection_init"}`, `<{"type":"connection_ack"}`
	for _, tc := range []struct {
		name  string
		steps []string
	}{
		{"subscribe before init", []string{subscribe("1", "{ serverInfo { version } }"), "<close 4401"}},
		{"second init", []string{init, ack, init, "<close 4429"}},
		{"init timeout", []string{"<close 4408"}},
		{"init refused", []string{`{"type":"connection_init","payload":{"key":"bad"}}`, "<close 4403 the key is not known"}},
		{"init while the keys cannot be read", []string{`{"type":"connection_init","payload":{"key":"later"}}`, "<close 1013"}},
		{"init payload is text", []string{`{"type":"connection_init","payload":"x"}`, "<close 4400"}},
		{"init payload is a list", []string{`{"type":"connection_init","payload":[]}`, "<close 4400"}},
		{"init payload is null", []string{`{"type":"connection_init","payload":null}`, ack}},
		{"garbage before init", []string{`garbage`, "<close 4400"}},
		{"garbage after init", []string{init, ack, `{"type":`, "<close 4400"}},
		{"a list", []string{init, ack, `[]`, "<close 4400"}},
		{"unknown type", []string{init, ack, `{"type":"nope"}`, "<close 4400"}},
		{"type is a number", []string{init, ack, `{"type":1}`, "<close 4400"}},
		{"subscribe without id", []string{init, ack, `{"type":"subscribe","payload":{"query":"{ serverInfo { version } }"}}`, "<close 4400"}},
		{"subscribe with an empty id", []string{init, ack, subscribe("", "{ serverInfo { version } }"), "<close 4400"}},
		{"subscribe with a long id", []string{init, ack, subscribe(strings.Repeat("x", 129), "{ serverInfo { version } }"), "<close 4400"}},
		{"subscribe without payload", []string{init, ack, `{"id":"1","type":"subscribe"}`, "<close 4400"}},
		{"subscribe without query", []string{init, ack, `{"id":"1","type":"subscribe","payload":{}}`, "<close 4400"}},
		{"subscribe with a query that is a number", []string{init, ack, `{"id":"1","type":"subscribe","payload":{"query":1}}`, "<close 4400"}},
		{"subscribe with variables that are a list", []string{init, ack, `{"id":"1","type":"subscribe","payload":{"query":"{a}","variables":[]}}`, "<close 4400"}},
		{"complete without id", []string{init, ack, `{"type":"complete"}`, "<close 4400"}},
		{"live id again", []string{init, ack, subscribe("1", live), `<{"id":"1","type":"next","payload":{"data":{"nodeChanges":{"type":"SYNCED"}}}}`, subscribe("1", live), "<close 4409 Subscriber for 1 already exists"}},
		{"ping with payload", []string{init, ack, `{"type":"ping","payload":{"a":1}}`, `<{"type":"pong","payload":{"a":1}}`}},
		{"ping before init", []string{`{"type":"ping"}`, `<{"type":"pong"}`}},
		{"pong is ignored", []string{init, ack, `{"type":"pong"}`, `{"type":"ping"}`, `<{"type":"pong"}`}},
		{"query", []string{init, ack, subscribe("1", "{ serverInfo { version } }"), `<{"id":"1","type":"next","payload":{"data":{"serverInfo":{"version":"1.2.3"}}}}`, `<{"id":"1","type":"complete"}`}},
		{"mutation", []string{init, ack, subscribe("1", `mutation { heartbeat(input: {uid: "u", incarnation: 1}) { nextBeatIn } }`), `<{"id":"1","type":"next","payload":{"data":{"heartbeat":{"nextBeatIn":"10s"}}}}`, `<{"id":"1","type":"complete"}`}},
		{"error ends that one only, without complete", []string{init, ack, subscribe("1", "{ nope }"), `<{"id":"1","type":"error","payload":[{"message":"Cannot query field \"nope\" on type \"Query\"."`, subscribe("1", "{ serverInfo { version } }"), `<{"id":"1","type":"next"`, `<{"id":"1","type":"complete"}`}},
		{"missing variable", []string{init, ack, subscribe("1", "query($id: ID!) { node(id: $id) { id } }"), `<{"id":"1","type":"error"`}},
		{"a resolver refuses", []string{init, ack, subscribe("1", `subscription { nodeChanges(filter: {role: SERVICE}) { type } }`), `<{"id":"1","type":"error","payload":[{"message":"filter.role: it is not served here"`}},
		{"a resolver panics in a subscription", []string{init, ack, subscribe("1", `subscription { healthChanges { type } }`), `<{"id":"1","type":"error","payload":[{"message":"internal error`, `{"type":"ping"}`, `<{"type":"pong"}`}},
		{"a bad cursor", []string{init, ack, subscribe("1", `subscription { nodeChanges(since: "x") { type } }`), `<{"id":"1","type":"error","payload":[{"message":"cursor: it has 1 characters`}},
		{"a cursor that is a number", []string{init, ack, subscribe("1", `subscription { nodeChanges(since: 5) { type } }`), `<{"id":"1","type":"error","payload":[{"message":"cursor: `}},
		{"a conditional root field", []string{init, ack, subscribe("1", `subscription { nodeChanges @skip(if: true) { type } }`), `<{"id":"1","type":"error","payload":[{"message":"the field nodeChanges of a subscription takes no directives`}},
		{"silence after complete", []string{init, ack, subscribe("1", live), `<{"id":"1","type":"next"`, `{"id":"1","type":"complete"}`, `{"type":"ping"}`, `<{"type":"pong"}`}},
		{"an id again right after complete", []string{init, ack, subscribe("1", live), `<{"id":"1","type":"next"`, `{"id":"1","type":"complete"}`, subscribe("1", live), `<{"id":"1","type":"next"`, `{"id":"1","type":"complete"}`, `{"type":"ping"}`, `<{"type":"pong"}`}},
		{"complete of an unknown id", []string{init, ack, `{"id":"zz","type":"complete"}`, `{"type":"ping"}`, `<{"type":"pong"}`}},
		{"too large", []string{init, ack, subscribe("1", strings.Repeat(" ", 2<<20)), "<close 1009"}},
		{"above the usual limit", []string{init, ack, subscribe("1", "{ serverInfo { version } }"+strings.Repeat(" ", 70<<10)), `<{"id":"1","type":"error","payload":[{"message":"the request has 71`}},
		{"too many operations", []string{init, ack, subscribe("1", live), `<{"id":"1","type":"next"`, subscribe("2", live), `<{"id":"2","type":"next"`, subscribe("3", live), `<{"id":"3","type":"error","payload":[{"message":"the connection has its 2 operations`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, transport.Options{
				InitTimeout:  300 * time.Millisecond,
				Limits:       transport.Limits{Operations: 2},
				Authenticate: authenticate,
			})
			c := f.dial()
			for _, step := range tc.steps {
				if want, ok := strings.CutPrefix(step, "<"); ok {
					c.expect(want)
				} else {
					c.send(step)
				}
			}
		})
	}
}

func authenticate(_ context.Context, _ *http.Request, init map[string]any) (muster.Principal, error) {
	switch key, _ := init["key"].(string); key {
	case "bad":
		return muster.Principal{}, muster.Errorf(muster.Unauthenticated, "the key is not known")
	case "later":
		return muster.Principal{}, muster.Errorf(muster.Unavailable, "the keys cannot be read now")
	case "":
		return muster.Local(), nil
	default:
		return muster.Principal{Name: key, Role: muster.Viewer}, nil
	}
}

func TestWebSocket_BinaryFrame(t *testing.T) {
	c := newFixture(t, transport.Options{}).connect()
	if err := c.ws.WriteMessage(websocket.BinaryMessage, []byte(`{"type":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	c.expect("close 4400")
}

func TestWebSocket_Upgrade(t *testing.T) {
	for _, tc := range []struct {
		name      string
		protocols []string
		origin    string
		status    int    // 0: upgraded
		closes    string // after it
	}{
		{"no subprotocol", nil, "", 0, "close 4406"},
		{"another subprotocol", []string{"graphql-ws"}, "", 0, "close 4406"},
		{"a page of another origin", []string{"graphql-transport-ws"}, "http://evil.example", http.StatusForbidden, ""},
		{"a page without an origin", []string{"graphql-transport-ws"}, "null", http.StatusForbidden, ""},
		{"a page of an allowed origin", []string{"graphql-transport-ws"}, "https://console.example", 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, transport.Options{Origins: []string{"https://console.example"}})
			header := http.Header{}
			if tc.origin != "" {
				header.Set("Origin", tc.origin)
			}
			ws, response, err := (&websocket.Dialer{Subprotocols: tc.protocols}).Dial(f.wsURL(), header)
			if tc.status != 0 {
				if err == nil || response.StatusCode != tc.status {
					t.Fatalf("got %v, %v", response, err)
				}
				if b, _ := io.ReadAll(response.Body); !strings.Contains(string(b), `"code":"FORBIDDEN"`) {
					t.Errorf("body %s", b)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = ws.Close() }()
			if tc.closes != "" {
				(&client{t: t, ws: ws}).expect(tc.closes)
			}
		})
	}
}

func TestWebSocket_ConnectionLimits(t *testing.T) {
	f := newFixture(t, transport.Options{
		Authenticate: authenticate,
		Limits:       transport.Limits{Connections: 3, ConnectionsPerPrincipal: 1},
	})
	first := f.dial()
	first.send(`{"type":"connection_init","payload":{"key":"ann"}}`)
	first.expect(`{"type":"connection_ack"}`)
	second := f.dial()
	second.send(`{"type":"connection_init","payload":{"key":"ann"}}`)
	second.expect("close 1013 Too many connections of this principal")
	within(t, 10*time.Second, "one connection", func() bool { return f.handler.Stats().Connections == 1 })
	f.dial()
	f.dial()
	_, response, err := websocket.DefaultDialer.Dial(f.wsURL(), nil)
	if err == nil || response.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("a fourth connection: %v, %v", response, err)
	}
	if b, _ := io.ReadAll(response.Body); !strings.Contains(string(b), `"limit":"connections"`) {
		t.Errorf("body %s", b)
	}
	_ = first.ws.Close()
	within(t, 10*time.Second, "ann gone", func() bool { return f.handler.Stats().Connections == 2 })
	again := f.dial()
	again.send(`{"type":"connection_init","payload":{"key":"ann"}}`)
	again.expect(`{"type":"connection_ack"}`)
}

func TestWebSocket_StreamLimit(t *testing.T) {
	f := newFixture(t, transport.Options{Limits: transport.Limits{Streams: 1}})
	c := f.connect()
	c.send(subscribe("1", `subscription { nodeChanges(initial: false) { type } }`))
	c.expect(`{"id":"1","type":"next"`)
	c.send(subscribe("2", `subscription { nodeChanges(initial: false) { type } }`))
	if got := c.expect(`{"id":"2","type":"error"`); !strings.Contains(got, `"limit":"streams"`) {
		t.Error(got)
	}
	c.send(`{"id":"1","type":"complete"}`)
	within(t, 10*time.Second, "no stream", func() bool { return f.handler.Stats().Streams == 0 })
	c.send(subscribe("3", `subscription { nodeChanges(initial: false) { type } }`))
	c.expect(`{"id":"3","type":"next"`)
}

func TestWebSocket_LargeReportOfAnAgent(t *testing.T) {
	c := newFixture(t, transport.Options{}).connect()
	instance := map[string]any{"machine": strings.Repeat("m", 500), "epoch": epoch, "id": "i-1", "generation": 1, "status": "RUNNING"}
	var instances []any
	for range 400 {
		instances = append(instances, instance)
	}
	b, _ := json.Marshal(map[string]any{"id": "r", "type": "subscribe", "payload": map[string]any{
		"query":     `mutation($input: ReportInstancesInput!) { reportInstances(input: $input) { revision } }`,
		"variables": map[string]any{"input": map[string]any{"uid": "u", "incarnation": 1, "sequence": 1, "epoch": epoch, "appliedRevision": 1, "instances": instances}},
	}})
	if len(b) < 200<<10 {
		t.Fatalf("only %d bytes", len(b))
	}
	c.send(string(b))
	c.expect(`{"id":"r","type":"next","payload":{"data":{"reportInstances":{"revision":400}}}}`)
}

func TestWebSocket_CompleteCancelsAnOperation(t *testing.T) {
	f := newFixture(t, transport.Options{})
	c := f.connect()
	for i := range 50 {
		c.send(subscribe("q", `{ node(id: "slow") { id } }`))
		c.send(`{"id":"q","type":"complete"}`)
		c.send(subscribe("q", fmt.Sprintf(`{ node(id: "n%d") { id } }`, i)))
		c.expect(fmt.Sprintf(`{"id":"q","type":"next","payload":{"data":{"node":{"id":"n%d"}}}}`, i))
		c.expect(`{"id":"q","type":"complete"}`)
	}
}

func TestWebSocket_PingsEndADeadConnection(t *testing.T) {
	f := newFixture(t, transport.Options{Ping: time.Second}) // long enough for a live one to answer on a busy machine
	live := f.connect()
	done := make(chan string)
	go func() { done <- live.receive() }() // answers pings meanwhile
	dead := f.connect()
	dead.ws.SetPingHandler(func(string) error { return nil })
	dead.expect("close 1001 No answer to pings")
	within(t, 10*time.Second, "only the live connection", func() bool { return f.handler.Stats().Connections == 1 })
	live.send(`{"type":"ping"}`)
	if got := <-done; got != `{"type":"pong"}` {
		t.Error(got)
	}
}

func TestHandler_Shutdown(t *testing.T) {
	f := newFixture(t, transport.Options{ShutdownOver: 50 * time.Millisecond})
	var clients []*client
	for range 10 {
		c := f.connect()
		c.send(subscribe("1", nodeChanges))
		c.expect(`{"id":"1","type":"next"`)
		clients = append(clients, c)
	}
	if err := f.handler.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		got := c.receive()
		for strings.Contains(got, `"type":"next"`) {
			got = c.receive()
		}
		if !strings.HasPrefix(got, "close 1001 Going away") {
			t.Error(got)
		}
	}
	if s := f.handler.Stats(); s.Connections != 0 || s.Streams != 0 || s.Groups != 0 {
		t.Errorf("left over: %+v", s)
	}
	_, response, err := websocket.DefaultDialer.Dial(f.wsURL(), nil)
	if err == nil || response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a connection after the end: %v, %v", response, err)
	}
}
