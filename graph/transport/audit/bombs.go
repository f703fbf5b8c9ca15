package audit

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Bomb is a request that has to be refused before it costs.
type Bomb struct {
	Name  string
	Limit string // that refuses it, as extensions.limit names it
	Body  string // of an HTTP request, or the payload of a subscribe
}

// Body is the request of a query.
func Body(query string) string {
	b, _ := json.Marshal(map[string]string{"query": query})
	return string(b)
}

// Bombs are requests that would cost much if they were read, parsed, validated or
// executed. The limits that refuse them are the defaults.
func Bombs() []Bomb {
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
	return []Bomb{
		{"24 doubling fragments", "fields", Body(doubling)},
		{"3,000 repeated fields", "tokens", Body("{ serverInfo { " + strings.Repeat("version ", 3000) + "} }")},
		{"10,000 repeated fields", "tokens", Body("{ serverInfo { " + strings.Repeat("version ", 10000) + "} }")},
		{"200 x 100 inline fragments", "tokens", Body("{ serverInfo { " + strings.Repeat("... { "+strings.Repeat("... { version } ", 100)+"} ", 200) + "} }")},
		{"20 x 20 inline fragments", "tokens", Body("{ serverInfo { " + strings.Repeat("... { "+strings.Repeat("... { version } ", 20)+"} ", 20) + "} }")},
		{"10,000 aliases", "tokens", Body("{ " + repeat(10000, "a%d: serverInfo { version }") + "}")},
		{"31 aliases", "aliases", Body("{ serverInfo { " + repeat(31, "a%d: version") + "} }")},
		{"aliases in a fragment", "aliases", Body("{ serverInfo { ...f } a: serverInfo { ...f } b: serverInfo { ...f } } fragment f on ServerInfo { " + repeat(10, "x%d: version") + "}")},
		{"21 root fields", "rootFields", Body("{ ...f " + repeat(11, "serverInfo { version } # %d\n") + "} fragment f on Query { " + repeat(10, "serverInfo { version } # %d\n") + "}")},
		{"20,000 directives", "tokens", Body("{ serverInfo " + strings.Repeat("@skip(if: false) ", 20000) + "{ version } }")},
		{"21 directives", "directives", Body("{ serverInfo " + strings.Repeat("@skip(if: false) ", 21) + "{ version } }")},
		{"directives of the operation", "directives", Body("query " + strings.Repeat("@a ", 21) + "{ serverInfo { version } }")},
		{"depth of 10,000", "tokens", Body(strings.Repeat("{a", 10000) + strings.Repeat("}", 10000))},
		{"depth of 21", "depth", Body(strings.Repeat("{a", 21) + strings.Repeat("}", 21))},
		{"a comment of 10,000 lines", "tokens", Body("{ serverInfo { version } }" + strings.Repeat("#\n", 10000))},
		{"10 MB", "body", Body(strings.Repeat(" ", 10<<20))},
		{"200 unknown variables", "tokens", string(variables)},
		{"nested lists", "complexity", Body("{ nodes(first: 100) { edges { node { instances(first: 100) { edges { node { changes(first: 100) { reason } } } } } } } }")},
		{"nested lists by variable", "complexity", `{"query":"query($n: Int) { nodes(first: $n) { edges { node { instances(first: $n) { edges { node { changes(first: $n) { reason } } } } } } } }","variables":{"n":100}}`},
	}
}
