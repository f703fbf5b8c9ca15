package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

const everything = `subscription { healthChanges { type } }`

// watching opens a stream by a key's text and reads its first event.
func (w *town) watching(key, query string) *websocket.Conn {
	w.t.Helper()
	conn, refused := w.open(caller{key: key})
	if conn == nil {
		w.t.Fatalf("no stream: %s", refused)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.WriteJSON(map[string]any{"id": "1", "type": "subscribe", "payload": map[string]string{"query": query}})
	if strings.Contains(query, "healthChanges") {
		if _, _, err := conn.ReadMessage(); err != nil {
			w.t.Fatal(err)
		}
	}
	return conn
}

// ends reads a stream to its end, and returns the close code.
func ends(t *testing.T, conn *websocket.Conn) int {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		if _, _, err := conn.ReadMessage(); err != nil {
			closed, ok := err.(*websocket.CloseError)
			if !ok {
				t.Fatalf("it did not end: %v", err)
			}
			return closed.Code
		}
	}
}

// lives reports whether a connection answers.
func lives(t *testing.T, conn *websocket.Conn) bool {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if conn.WriteJSON(map[string]string{"type": "ping"}) != nil {
		return false
	}
	for {
		var m struct{ Type string }
		if err := conn.ReadJSON(&m); err != nil {
			return false
		}
		if m.Type == "pong" {
			return true
		}
	}
}

// A stream ends with its key, at once, whatever ends the key; those of other keys that
// share its execution go on.
func TestStreams_EndWithTheirKey(t *testing.T) {
	w := newTown(t)
	soon := func(d time.Duration) string {
		return fmt.Sprintf(`, expiresAt: %q`, time.Now().Add(d).Format(time.RFC3339Nano))
	}
	rotate := func(overlap string) func(key string) {
		return func(key string) {
			w.must(admin, fmt.Sprintf(`mutation { rotateAccessKey(input: {id: %q, overlap: %q}) { revision } }`, idOf(key), overlap))
		}
	}
	revoke := func(key string) {
		w.must(admin, fmt.Sprintf(`mutation { revokeAccessKey(input: {id: %q}) { revision } }`, idOf(key)))
	}
	for name, test := range map[string]struct {
		key   func() string
		query string
		end   func(key string)
	}{
		"revoked":                       {func() string { return w.key("VIEWER", "") }, everything, revoke},
		"rotated without an overlap":    {func() string { return w.key("VIEWER", "") }, everything, rotate("0s")},
		"rotated, and its overlap over": {func() string { return w.key("VIEWER", "") }, everything, rotate("1s")},
		"expired":                       {func() string { return w.key("VIEWER", soon(time.Second)) }, everything, func(string) {}},
		"opened with a former secret": {func() string {
			key := w.key("VIEWER", "")
			rotate("1s")(key)
			return key
		}, everything, func(string) {}},
		"of a session whose key is revoked": {func() string {
			w.keys["parent"] = w.key("VIEWER", "")
			return w.signedIn("parent")
		}, everything, func(string) { revoke(w.keys["parent"]) }},
		"of a node that is forgotten": {func() string {
			key, uid := w.join(fmt.Sprintf("a-%d", w.next()))
			w.ids["gone"] = uid
			return key
		}, "", func(string) {
			w.must(admin, fmt.Sprintf(`mutation { removeNode(input: {id: %q}) { revision } }`, w.ids["gone"]))
			w.must(admin, fmt.Sprintf(`mutation { forgetNode(input: {id: %q}) { revision } }`, w.ids["gone"]))
		}},
		"of a token that is revoked": {func() string {
			return w.must(admin, `mutation { createJoinToken(input: {}) { text } }`, "createJoinToken", "text")
		}, `subscription { agentRequests(uid: "x", incarnation: 1) { id } }`, func(key string) {
			w.must(admin, fmt.Sprintf(`mutation { revokeJoinToken(input: {id: %q}) { revision } }`, idOf(key)))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			defer func(before *testing.T) { w.t = before }(w.t)
			w.t = t
			key := test.key()
			query := test.query
			if query == "" {
				query = fmt.Sprintf(`subscription { agentRequests(uid: %q, incarnation: 1) { id } }`, w.ids["gone"])
			}
			other := w.watching(w.keys[viewer], everything)
			conn := w.watching(key, query)
			if !lives(t, conn) {
				t.Fatal("it ended before its key")
			}
			test.end(key)
			if code := ends(t, conn); code != 4403 {
				t.Errorf("it ended with %d", code)
			}
			if !lives(t, other) {
				t.Error("the stream of another key ended, too")
			}
			if a := w.http(caller{key: key}, "POST", "/graphql", `{"query": "{ __typename }"}`); a.status != http.StatusUnauthorized {
				t.Errorf("the key still opens: %d %s", a.status, a.body)
			}
		})
	}
}

// signedIn signs a browser in as a caller of the town, and returns the session's key.
func (w *town) signedIn(name string) string {
	w.t.Helper()
	_, code, _ := strings.Cut(w.must(name, `mutation { createSignIn(input: {}) { path } }`, "createSignIn", "path"), "#")
	a := w.http(caller{}, "POST", "/sign-in", fmt.Sprintf(`{"code": %q}`, code))
	var in struct{ Key string }
	if err := json.Unmarshal([]byte(a.body), &in); err != nil || in.Key == "" {
		w.t.Fatalf("sign-in: %+v", a)
	}
	return in.Key
}

func TestStreams_GoOnWithinAnOverlap(t *testing.T) {
	w := newTown(t)
	key := w.key("VIEWER", "")
	conn := w.watching(key, everything)
	text := w.must(admin, fmt.Sprintf(`mutation { rotateAccessKey(input: {id: %q, overlap: "1h"}) { text } }`, idOf(key)), "rotateAccessKey", "text")
	for _, other := range []*websocket.Conn{w.watching(key, everything), w.watching(text, everything), conn} {
		if !lives(t, other) {
			t.Error("a stream ended within the overlap")
		}
	}
	w.must(admin, fmt.Sprintf(`mutation { rotateAccessKey(input: {id: %q, overlap: "1h"}) { text } }`, idOf(key)))
	if code := ends(t, conn); code != 4403 {
		t.Errorf("of the secret before the last: %d", code)
	}
}

// Failures of one address are told so after a few of them, are not in the audit one by
// one, and concern nobody else.
func TestThrottle_ByAddress(t *testing.T) {
	w := newTown(t)
	const burst = 10 // as auth.ThrottleOptions has it
	stranger, neighbour := caller{w.keys["a foreign cluster's key"], "127.2.0.1"}, caller{w.keys["a foreign cluster's key"], "127.2.0.2"}
	ask := func(c caller) reply { return w.http(c, "POST", "/graphql", `{"query": "{ __typename }"}`) }
	codes := map[string]int{}
	for range 3 * burst {
		codes[ask(stranger).code]++
	}
	// A failure more is allowed each few seconds.
	if codes["UNAUTHENTICATED"] < burst || codes["UNAUTHENTICATED"] > burst+5 || codes["LIMIT"] != 3*burst-codes["UNAUTHENTICATED"] {
		t.Errorf("%v", codes)
	}
	for name, a := range map[string]reply{
		"a route":   w.http(stranger, "GET", "/metrics", ""),
		"a sign-in": w.http(stranger, "POST", "/sign-in", `{"code": "none"}`),
		"no key":    ask(caller{addr: stranger.addr}),
	} {
		if a.status != http.StatusTooManyRequests || a.code != "LIMIT" || !strings.Contains(a.body, "too many failed attempts") || !strings.Contains(a.body, "failedAttempts") {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if conn, code := w.open(stranger); conn != nil || !strings.Contains(code, "4403") || !strings.Contains(code, "too many failed attempts") {
		t.Errorf("a WebSocket: %s", code)
	}
	if a := ask(neighbour); a.code != "UNAUTHENTICATED" {
		t.Errorf("another address: %+v", a)
	}
	// Whoever has a good key is let in: others behind the same address lock nobody out.
	if a := ask(caller{w.keys[viewer], stranger.addr}); a.status != http.StatusOK {
		t.Errorf("a good key from that address: %+v", a)
	}
	a := w.ask(admin, `{ auditLog(filter: {refused: true}, first: 100) { edges { node { addr count } } } }`)
	counted := 0
	for _, e := range a.data["auditLog"].(map[string]any)["edges"].([]any) {
		if n := e.(map[string]any)["node"].(map[string]any); n["addr"] == stranger.addr {
			counted += int(n["count"].(float64))
		}
	}
	if counted < burst || counted > burst+5 {
		t.Errorf("%d of the failures are in the audit", counted)
	}
}
