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
)

// bomb is a request that has to be refused before it costs.
type bomb struct {
	name, limit string
	body        string
}

func text(query string) string {
	b, _ := json.Marshal(map[string]string{"query": query})
	return string(b)
}

func bombs() []bomb {
	doubling := "{ serverInfo { ...f0 } }"
	for i := range 24 {
		doubling += fmt.Sprintf(" fragment f%d on ServerInfo { ...f%d ...f%d }", i, i+1, i+1)
	}
	doubling += " fragment f24 on ServerInfo { version }"
	repeat := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format+" ", i)
		}
		return b.String()
	}
	variables, _ := json.Marshal(map[string]any{"query": "{ nodes(first: $v) { totalCount " + repeat(200, "a%[1]d: totalCount @skip(if: $v%[1]d)") + "} }"})
	return []bomb{
		{"24 doubling fragments", "fields", text(doubling)},
		{"3,000 repeated fields", "tokens", text("{ serverInfo { " + strings.Repeat("version ", 3000) + "} }")},
		{"10,000 repeated fields", "tokens", text("{ serverInfo { " + strings.Repeat("version ", 10000) + "} }")},
		{"200 x 100 inline fragments", "tokens", text("{ serverInfo { " + strings.Repeat("... { "+strings.Repeat("... { version } ", 100)+"} ", 200) + "} }")},
		{"20 x 20 inline fragments", "tokens", text("{ serverInfo { " + strings.Repeat("... { "+strings.Repeat("... { version } ", 20)+"} ", 20) + "} }")},
		{"10,000 aliases", "tokens", text("{ " + repeat(10000, "a%d: serverInfo { version }") + "}")},
		{"31 aliases", "aliases", text("{ serverInfo { " + repeat(31, "a%d: version") + "} }")},
		{"aliases in a fragment", "aliases", text("{ serverInfo { ...f } a: serverInfo { ...f } b: serverInfo { ...f } } fragment f on ServerInfo { " + repeat(10, "x%d: version") + "}")},
		{"21 root fields", "rootFields", text("{ ...f " + repeat(11, "serverInfo { version } # %d\n") + "} fragment f on Query { " + repeat(10, "serverInfo { version } # %d\n") + "}")},
		{"20,000 directives", "tokens", text("{ serverInfo " + strings.Repeat("@skip(if: false) ", 20000) + "{ version } }")},
		{"21 directives", "directives", text("{ serverInfo " + strings.Repeat("@skip(if: false) ", 21) + "{ version } }")},
		{"directives of the operation", "directives", text("query " + strings.Repeat("@a ", 21) + "{ serverInfo { version } }")},
		{"depth of 10,000", "tokens", text(strings.Repeat("{a", 10000) + strings.Repeat("}", 10000))},
		{"depth of 21", "depth", text(strings.Repeat("{a", 21) + strings.Repeat("}", 21))},
		{"a comment of 10,000 lines", "tokens", text("{ serverInfo { version } }" + strings.Repeat("#\n", 10000))},
		{"10 MB", "body", text(strings.Repeat(" ", 10<<20))},
		{"200 unknown variables", "tokens", string(variables)},
		{"nested lists", "complexity", text("{ nodes(first: 100) { edges { node { instances(first: 100) { edges { node { changes(first: 100) { reason } } } } } } } }")},
		{"nested lists by variable", "complexity", `{"query":"query($n: Int) { nodes(first: $n) { edges { node { instances(first: $n) { edges { node { changes(first: $n) { reason } } } } } } } }","variables":{"n":100}}`},
	}
}

// defuse sends a bomb without a network and returns the answer.
func defuse(h http.Handler, body string) string {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Body.String()
}

func TestLimits_RefuseBombsBeforeTheyCost(t *testing.T) {
	for _, b := range bombs() {
		t.Run(b.name, func(t *testing.T) {
			h := newFixture(t, transport.Options{}).handler
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			answer := defuse(h, b.body)
			runtime.ReadMemStats(&after)
			if want := fmt.Sprintf(`"limit":%q`, b.limit); !strings.Contains(answer, want) || !strings.Contains(answer, `"code":"LIMIT"`) {
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
	answer := defuse(h, text("{ nodes { totalCount edges { node { changes(first: $v) { reason } instances(first: $w, after: $x) { totalCount } } } } }"))
	if strings.Count(answer, `"message"`) != 3 {
		t.Errorf("got %s", answer)
	}
	answer = defuse(h, text("query A { "+uses[:19*len("node(id: $v0) { id } ")]+"node(id: $z) { id } }"))
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
				if answer := defuse(h, text(tc.query)); !strings.HasPrefix(answer, `{"data":`) {
					t.Errorf("got %.300s", answer)
				}
			}
		})
	}
}

// FuzzLimits: whatever the text, the answer is JSON with data or errors of the
// closed list, and never INTERNAL but where the fixture's resolvers make it so.
func FuzzLimits(f *testing.F) {
	for _, b := range bombs() {
		if len(b.body) < 2000 {
			f.Add(b.body)
		}
	}
	f.Add(text("subscription { nodeChanges { type } }"))
	f.Add(text("query A($n: Int = 3) { __schema { types { name } } } query B { __typename }"))
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
