package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster/registry/auth"
	"github.com/muster-cloud/muster/server"
)

// town is a server that asks for keys, and callers of every kind. The nodes a1 and a2 are
// inside of the scope of those who have one, and node a1 is that of the NODE key; b1 is
// foreign to them.
type town struct {
	*server.Server
	t       *testing.T
	keys    map[string]string // the texts of the callers, by what they are called in the tables
	ids     map[string]string // of objects
	made    int
	strange atomic.Int32 // addresses that callers came from
}

// The callers, a letter each; those of strangers are let in nowhere.
const (
	admin, operator, scopedOperator, viewer, scopedViewer = "A", "O", "o", "V", "v"
	node, registrar, joining                              = "N", "R", "J"
	everybody                                             = admin + operator + scopedOperator + viewer + scopedViewer + node + registrar + joining
)

// strangers are callers that nothing is for but what is public.
func strangers() []string {
	return []string{"no key", "a malformed key", "an expired key", "a revoked key", "a foreign cluster's key", "a spent sign-in code"}
}

func newTown(t *testing.T) *town {
	t.Helper()
	return newTownThatLogs(t, slog.DiscardHandler)
}

func newTownThatLogs(t *testing.T, to slog.Handler) *town {
	t.Helper()
	dir := t.TempDir()
	s, err := server.Open(t.Context(), server.Options{
		DataDir: dir, Listen: "127.0.0.1:0", Logger: slog.New(to),
		UnhealthyAfter: time.Hour, PruneAfter: 2 * time.Hour, // its nodes have no agents
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, s)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &town{Server: s, t: t, keys: map[string]string{}, ids: map[string]string{}}
	eventually(t, "there is the first key", func() bool {
		text, err := os.ReadFile(server.AdminKeyFile(dir))
		w.keys[admin] = strings.TrimSpace(string(text))
		return err == nil
	})
	w.populate()
	return w
}

func (w *town) populate() {
	w.keys[operator] = w.key("OPERATOR", "")
	w.keys[scopedOperator] = w.key("OPERATOR", `, scope: {nodes: ["a*"]}`)
	w.keys[viewer] = w.key("VIEWER", "")
	w.keys[scopedViewer] = w.key("VIEWER", `, scope: {nodes: ["a*"]}`)
	w.keys[registrar] = w.key("REGISTRAR", `, scope: {services: ["inside*"]}`)
	w.keys[node], w.ids["own uid"] = w.join("a1")
	foreign, uid := w.join("b1")
	w.ids["foreign uid"] = uid
	w.keys["b1"] = foreign
	w.keys[joining] = w.must(admin, `mutation { createJoinToken(input: {uses: 1000}) { text } }`, "createJoinToken", "text")
	w.keys["a malformed key"] = w.keys[admin][:len(w.keys[admin])-1] + "~"
	w.keys["a foreign cluster's key"] = auth.Key{ID: "k-1", Secret: auth.NewSecret()}.Text()
	w.keys["a revoked key"] = w.key("ADMIN", "")
	w.must(admin, fmt.Sprintf(`mutation { revokeAccessKey(input: {id: %q}) { accessKey { id } } }`, idOf(w.keys["a revoked key"])))
	w.keys["an expired key"] = w.key("ADMIN", fmt.Sprintf(`, expiresAt: %q`, time.Now().Add(200*time.Millisecond).Format(time.RFC3339Nano)))
	eventually(w.t, "the key has expired", func() bool { return w.ask("an expired key", `{ __typename }`).status == http.StatusUnauthorized })
	_, w.keys["a spent sign-in code"], _ = strings.Cut(w.must(admin, `mutation { createSignIn(input: {}) { path } }`, "createSignIn", "path"), "#")
	if a := w.http(caller{}, "POST", "/sign-in", `{"code": "`+w.keys["a spent sign-in code"]+`"}`); a.status != http.StatusOK {
		w.t.Fatalf("sign-in: %+v", a)
	}
	for name, id := range map[string]string{"own": "a1", "foreign": "b1"} {
		w.ids[name+" instance"] = w.launch(id)
		w.ids[name+" service"] = w.service(w.ids[name+" instance"], map[string]string{"own": "inside", "foreign": "outside"}[name])
	}
}

// idOf is the id in the text of a key.
func idOf(text string) string { return strings.Split(text, "_")[1] }

// reply is what came of one request.
type reply struct {
	status int
	code   string // of the first error; empty: none
	body   string
	data   map[string]any
}

// caller is who sends a request, and from where.
type caller struct {
	key  string
	addr string // empty: anywhere
}

// fresh is a caller by a key of the town, from an address that nobody came from before.
func (w *town) fresh(name string) caller {
	n := w.strange.Add(1)
	return caller{w.keys[name], fmt.Sprintf("127.1.%d.%d", n/250, n%250+1)}
}

func (c caller) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{}
	if c.addr != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(c.addr)}
	}
	return d.DialContext(ctx, network, address)
}

func (w *town) http(c caller, method, path, body string) reply {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), method, "http://"+w.Addr().String()+path, bytes.NewReader([]byte(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		request.Header.Set("Authorization", "Bearer "+c.key)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: c.dial}
	response, err := (&http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	a := reply{status: response.StatusCode, body: string(text)}
	var of struct {
		Data   map[string]any
		Errors []struct{ Extensions struct{ Code string } }
	}
	if json.Unmarshal(text, &of) == nil {
		a.data = of.Data
		if len(of.Errors) > 0 {
			a.code = of.Errors[0].Extensions.Code
		}
	}
	return a
}

// ask executes a query or a mutation as a caller of the town.
func (w *town) ask(name, query string) reply {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"query": query})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.http(w.fresh(name), "POST", "/graphql", string(body))
}

// must is ask for what has to succeed; it returns the text at a path in the answer.
func (w *town) must(name, query string, path ...string) string {
	w.t.Helper()
	a := w.ask(name, query)
	if a.code != "" || a.status != http.StatusOK {
		w.t.Fatalf("%s: %+v", query, a)
	}
	var at any = a.data
	for _, step := range path {
		at = at.(map[string]any)[step]
	}
	text, _ := at.(string)
	return text
}

// stream subscribes as a caller of the town, and returns the code that it ends with at
// once, or "" for the first event.
func (w *town) stream(name, query string) string {
	w.t.Helper()
	conn, code := w.open(w.fresh(name))
	if conn == nil {
		return code
	}
	defer conn.Close()
	return w.subscribe(conn, query)
}

// open opens a WebSocket; without one it returns the close code that it got instead.
func (w *town) open(c caller) (*websocket.Conn, string) {
	w.t.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}, NetDialContext: c.dial}
	conn, response, err := dialer.Dial("ws://"+w.Addr().String()+"/graphql", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	_ = response.Body.Close()
	payload := map[string]any{}
	if c.key != "" {
		payload["Authorization"] = "Bearer " + c.key
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_ = conn.WriteJSON(map[string]any{"type": "connection_init", "payload": payload})
	var m struct{ Type string }
	if err := conn.ReadJSON(&m); err != nil {
		_ = conn.Close()
		return nil, fmt.Sprint(err)
	}
	return conn, ""
}

func (w *town) subscribe(conn *websocket.Conn, query string) string {
	w.t.Helper()
	// A second time, since there is a subscription that gives no event, but ends when
	// another one begins.
	for _, id := range []string{"1", "2"} {
		_ = conn.WriteJSON(map[string]any{"id": id, "type": "subscribe", "payload": map[string]string{"query": query}})
	}
	for {
		var m struct {
			Type    string
			Payload json.RawMessage
		}
		if err := conn.ReadJSON(&m); err != nil {
			w.t.Fatalf("%s: %v", query, err)
		}
		switch m.Type {
		case "next":
			return ""
		case "error":
			var errs []struct{ Extensions struct{ Code string } }
			if err := json.Unmarshal(m.Payload, &errs); err != nil {
				w.t.Fatal(err)
			}
			return errs[0].Extensions.Code
		}
	}
}

// What the tables ask for by way of an ADMIN, as often as they are about to end one.

func (w *town) next() int { w.made++; return w.made }

func (w *town) key(role, more string) string {
	w.t.Helper()
	return w.must(admin, fmt.Sprintf(`mutation { createAccessKey(input: {name: "key-%d", role: %s%s}) { text } }`, w.next(), role, more), "createAccessKey", "text")
}

// join has a machine join and register, and returns its key and its uid.
func (w *town) join(id string) (key, uid string) {
	w.t.Helper()
	w.keys["token"] = w.must(admin, `mutation { createJoinToken(input: {}) { text } }`, "createJoinToken", "text")
	a := w.ask("token", fmt.Sprintf(`mutation { joinNode(input: {nodeId: %q, csr: %q}) { nodeUid key } }`, id, w.csr()))
	if a.code != "" {
		w.t.Fatalf("join: %+v", a)
	}
	joined := a.data["joinNode"].(map[string]any)
	key, uid = joined["key"].(string), joined["nodeUid"].(string)
	w.keys["joined"] = key
	w.must("joined", registration(id, uid))
	return key, uid
}

func registration(id, uid string) string {
	return fmt.Sprintf(`mutation { registerNode(input: {id: %q, uid: %q, hostname: "h", addr: "127.0.0.1", port: 1, cpuCount: 64, memoryMb: 65536, incarnation: 1, images: ["minimal"], volumes: ["on-%s"]}) { node { id } } }`, id, uid, id)
}

func (w *town) csr() string {
	w.t.Helper()
	key, err := auth.NewKey()
	if err != nil {
		w.t.Fatal(err)
	}
	csr, err := auth.NewRequest(key)
	if err != nil {
		w.t.Fatal(err)
	}
	return csr
}

func (w *town) launch(id string) string {
	w.t.Helper()
	return w.must(admin, fmt.Sprintf(`mutation { launchInstance(input: {type: NANO, nodeId: %q}) { instance { id } } }`, id), "launchInstance", "instance", "id")
}

func (w *town) service(instance, name string) string {
	w.t.Helper()
	return w.must(admin, fmt.Sprintf(`mutation { registerService(input: {instanceId: %q, name: "%s-%d", checks: [{name: "own", kind: TTL}]}) { service { id } } }`, instance, name, w.next()), "registerService", "service", "id")
}
