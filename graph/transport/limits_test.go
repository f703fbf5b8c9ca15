package transport_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/muster-cloud/muster/graph/transport"
	"github.com/muster-cloud/muster/graph/transport/audit"
)

// defuse sends a bomb without a network and returns the answer.
func defuse(h http.Handler, body string) string {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Body.String()
}

func TestLimits_RefuseBombsBeforeTheyCost(t *testing.T) {
	for _, b := range audit.Bombs() {
		t.Run(b.Name, func(t *testing.T) {
			h := newFixture(t, transport.Options{}).handler
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			answer := defuse(h, b.Body)
			runtime.ReadMemStats(&after)
			if want := fmt.Sprintf(`"limit":%q`, b.Limit); !strings.Contains(answer, want) || !strings.Contains(answer, `"code":"LIMIT"`) {
				t.Errorf("got %.300s, want %s", answer, want)
			}
			// What it took to read it, and a few thousand objects.
			if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
				t.Errorf("%d bytes were allocated", got)
			}
			if got := after.Mallocs - before.Mallocs; got > 20_000 {
				t.Errorf("%d objects were allocated", got)
			}
			if h.Stats().Refused != 1 || h.Stats().Operations != 0 {
				t.Errorf("counted as %+v", h.Stats())
			}
		})
	}
}

func TestLimits_UnknownVariablesAreFewErrors(t *testing.T) {
	h := newFixture(t, transport.Options{}).handler
	uses := ""
	for i := range 60 {
		uses += fmt.Sprintf("node(id: $v%d) { id } ", i)
	}
	answer := defuse(h, audit.Body("{ nodes { totalCount edges { node { changes(first: $v) { reason } instances(first: $w, after: $x) { totalCount } } } } }"))
	if strings.Count(answer, `"message"`) != 3 {
		t.Errorf("got %s", answer)
	}
	answer = defuse(h, audit.Body("query A { "+uses[:19*len("node(id: $v0) { id } ")]+"node(id: $z) { id } }"))
	if n := strings.Count(answer, `"message"`); n == 0 || n > 10 {
		t.Errorf("%d errors in %s", n, answer)
	}
	variables := map[string]any{}
	for i := range 1000 {
		variables[fmt.Sprintf("v%d", i)] = i
	}
	b, _ := json.Marshal(map[string]any{"query": "{ serverInfo { version } }", "variables": variables})
	if answer := defuse(h, string(b)); answer != `{"data":{"serverInfo":{"version":"1.2.3"}}}` {
		t.Errorf("1,000 variables that nobody asked for: %.200s", answer)
	}
}

func TestLimits_LetThrough(t *testing.T) {
	introspection, err := os.ReadFile("testdata/introspection.graphql")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, query string }{
		{"GraphiQL's introspection", string(introspection)},
		{"a page with its parts", "{ nodes(first: 20) { edges { node { id instances(first: 20) { edges { node { id name status changes(first: 10) { reason actor at } } } } } } } }"},
		{"30 aliases", "{ serverInfo { " + strings.Repeat("version ", 10) + func() (s string) {
			for i := range 30 {
				s += fmt.Sprintf("a%d: version ", i)
			}
			return s
		}() + "} }"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newFixture(t, transport.Options{}).handler
			for range 2 { // also when its document is kept
				if answer := defuse(h, audit.Body(tc.query)); !strings.HasPrefix(answer, `{"data":`) {
					t.Errorf("got %.300s", answer)
				}
			}
		})
	}
}

// FuzzLimits: whatever the text, the answer is JSON with data or errors of the
// closed list, and never INTERNAL but where the fixture's resolvers make it so.
func FuzzLimits(f *testing.F) {
	for _, b := range audit.Bombs() {
		if len(b.Body) < 2000 {
			f.Add(b.Body)
		}
	}
	f.Add(audit.Body("subscription { nodeChanges { type } }"))
	f.Add(audit.Body("query A($n: Int = 3) { __schema { types { name } } } query B { __typename }"))
	f.Add(`{"query":"query($f: NodeFilter) { nodes(filter: $f) { totalCount } }","variables":{"f":{"labels":{"a":"b"}}}}`)
	h := newFixture(f, transport.Options{}).handler
	f.Fuzz(func(t *testing.T, body string) {
		var answer struct {
			Data   json.RawMessage
			Errors []struct {
				Message    string
				Extensions struct{ Code string }
			}
		}
		text := defuse(h, body)
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if answer.Data == nil && len(answer.Errors) == 0 {
			t.Fatalf("neither data nor errors: %s", text)
		}
		for _, e := range answer.Errors {
			if e.Message == "" || e.Extensions.Code == "" || e.Extensions.Code == "INTERNAL" && answer.Data == nil {
				t.Fatalf("not presented: %s", text)
			}
		}
	})
}

// FuzzFrames: whatever the client sends as its third message, it gets an answer or
// a close code, and the server serves on.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{
		`{"type":"ping"}`, `{"type":"connection_init"}`, `{"id":"1","type":"subscribe","payload":{"query":"{ serverInfo { version } }"}}`,
		`{"id":"1","type":"complete"}`, `{"id":null,"type":"subscribe","payload":null}`, `[]`, `"`, `{"type":"pong","payload":{}}`, "\x00\xff",
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	fixture := newFixture(f, transport.Options{})
	f.Fuzz(func(t *testing.T, frame []byte, binary bool) {
		fixture.t = t
		c := fixture.connect()
		defer func() { _ = c.ws.Close() }()
		kind := 1
		if binary {
			kind = 2
		}
		if err := c.ws.WriteMessage(kind, frame); err != nil {
			t.Fatal(err)
		}
		_ = c.ws.WriteMessage(1, []byte(`{"type":"ping","payload":{"last":true}}`))
		for range 10 {
			got := c.receive()
			if strings.HasPrefix(got, "close ") || got == `{"type":"pong","payload":{"last":true}}` {
				return
			}
			if !json.Valid([]byte(got)) {
				t.Fatalf("not JSON: %s", got)
			}
		}
		t.Fatal("no end")
	})
}
