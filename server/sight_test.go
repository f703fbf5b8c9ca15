package server_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// metric is a counter of the server.
func (w *town) metric(name string) int {
	w.t.Helper()
	a := w.http(w.fresh(admin), "GET", "/metrics", "")
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(a.body)
	if found == nil {
		w.t.Fatalf("no metric %s", name)
	}
	n, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return int(n)
}

// told reads a stream up to an event of a type, or the change of a node with a reason, and
// returns the nodes that it told of meanwhile.
func told(t *testing.T, conn *websocket.Conn, until string) (nodes []string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		var m struct {
			Type    string
			Payload struct {
				Data struct {
					NodeChanges struct {
						Type, Reason string
						Node         *struct{ ID string }
					}
				}
			}
		}
		if err := conn.ReadJSON(&m); err != nil {
			t.Fatal(err)
		}
		e := m.Payload.Data.NodeChanges
		if e.Node != nil {
			nodes = append(nodes, e.Node.ID)
		}
		if e.Type == until || e.Type == "CHANGE" && e.Reason == until {
			return nodes
		}
	}
}

// Streams are executed once for all callers of the same scope, and for nobody else.
func TestScope_StreamsAreSharedWithinAScopeAlone(t *testing.T) {
	w := newTown(t)
	const query = `subscription { nodeChanges { type reason node { id instances { edges { node { id node { id } } } } } } }`
	a1, a2 := w.key("VIEWER", `, scope: {nodes: ["a*"]}`), w.key("VIEWER", `, scope: {nodes: ["a*"]}`)
	b, all := w.key("VIEWER", `, scope: {nodes: ["b*"]}`), w.key("VIEWER", "")
	streams := map[string][]*websocket.Conn{}
	for name, c := range map[string]struct {
		keys    []string
		present string
	}{"a": {[]string{a1, a2}, "a1"}, "b": {[]string{b}, "b1"}, "all": {[]string{all, w.keys[viewer]}, "a1 b1"}} {
		for _, key := range c.keys {
			conn := w.watching(key, query)
			if got := strings.Join(told(t, conn, "SYNCED"), " "); got != c.present {
				t.Errorf("a stream of the scope %s begins with %q, want %q", name, got, c.present)
			}
			streams[name] = append(streams[name], conn)
		}
	}
	cordon := func(id, reason string) {
		w.must(admin, fmt.Sprintf(`mutation { cordonNode(input: {id: %q, reason: %q}) { revision } }`, id, reason))
	}
	before := w.metric("muster_transport_executions_total")
	cordon("b1", "outside")
	cordon("a1", "inside")
	for name, c := range map[string]struct{ until, want string }{
		"a": {"inside", "a1"}, "b": {"outside", "b1"}, "all": {"inside", "b1 a1"},
	} {
		for _, conn := range streams[name] {
			if got := strings.Join(told(t, conn, c.until), " "); got != c.want {
				t.Errorf("a stream of the scope %s told of %q, want %q", name, got, c.want)
			}
		}
	}
	// a was told of one change, b of the other one, all of both: each once for all streams.
	if n := w.metric("muster_transport_executions_total") - before; n != 4 {
		t.Errorf("%d executions, want 4", n)
	}
}

// What a field gives leads on to nothing that is outside of its caller's scope.
func TestScope_LinksLeadNowhereElse(t *testing.T) {
	w := newTown(t)
	const onwards = `id uid instances { edges { node { id node { uid instances { edges { node { id } } } volumes { name node { uid } instances { id } } } changes { objectId } } } } volumes { node { uid } instances { id } } changes { objectId }`
	for caller, query := range map[string]string{
		node:           strings.Replace(registration("a1", w.ids["own uid"]), "{ node { id } }", "{ node { "+onwards+" } }", 1),
		scopedOperator: fmt.Sprintf(`mutation { labelNode(input: {id: "a1", set: {a: "b"}}) { node { %s } } }`, onwards),
		scopedViewer:   fmt.Sprintf(`{ nodes { edges { node { %s } } } volumes { edges { node { node { uid } instances { id } } } } services { edges { node { id instance { id node { uid } } } } } changes(first: 100) { edges { node { node { uid } instance { id node { uid } } service { id } } } } }`, onwards),
	} {
		a := w.ask(caller, query)
		if a.code != "" || !strings.Contains(a.body, w.ids["own instance"]) {
			t.Fatalf("%s: %+v", caller, a)
		}
		if w.showsOutside(a.body) || strings.Contains(a.body, `"b1"`) {
			t.Errorf("%s got %s", caller, a.body)
		}
	}
	// The same leads outside for who sees it all: the search above can find it.
	if a := w.ask(viewer, `{ nodes { edges { node { uid } } } }`); !w.showsOutside(a.body) {
		t.Error("nothing outside is found at all")
	}
}
