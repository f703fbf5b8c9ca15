package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
)

// oddRequests is how many requests with odd input are made, by dice of one seed.
const oddRequests, oddSeed = 4000, 7

// Whatever a caller sends is the caller's mistake, if it is one: never INTERNAL, and no
// error in the log.
func TestOddInput_IsNoFaultOfTheServer(t *testing.T) {
	log := &errorLog{}
	w := newTownThatLogs(t, log)
	text, err := os.ReadFile("../schema.graphqls")
	if err != nil {
		t.Fatal(err)
	}
	schema, err := gqlparser.LoadSchema(&ast.Source{Name: "schema.graphqls", Input: string(text)})
	if err != nil {
		t.Fatal(err)
	}
	o := &odd{w: w, schema: schema, r: rand.New(rand.NewPCG(oddSeed, 1))}
	o.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	defer o.http.CloseIdleConnections()
	o.collect()
	fields := slices.Concat(schema.Mutation.Fields, schema.Mutation.Fields, schema.Query.Fields)
	for range 10 { // what agents say is the longest
		fields = append(fields, schema.Mutation.Fields.ForName("reportInstances"), schema.Mutation.Fields.ForName("registerNode"))
	}
	codes := map[string]int{}
	for k := range oddRequests {
		f := fields[o.r.IntN(len(fields))]
		kind := "query"
		if schema.Mutation.Fields.ForName(f.Name) != nil {
			kind = "mutation"
		}
		query, variables := o.request(kind, f)
		code := o.send(t, f.Name, query, variables)
		codes[code]++
		if code == "INTERNAL" || code == "500" {
			t.Errorf("%s\n%s\ngot %s", query, variables, code)
		}
		if k%500 == 499 {
			o.collect()
		}
	}
	for _, line := range log.all() {
		t.Errorf("the server logs: %s", line)
	}
	// Else what was sent was no more than nonsense.
	if codes[""] < oddRequests/50 || codes["INVALID"] < oddRequests/50 || codes["NOT_FOUND"] == 0 || codes["CONFLICT"] == 0 {
		t.Errorf("the answers were %v", codes)
	}
}

// errorLog keeps what is logged as an error.
type errorLog struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (l *errorLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

func (l *errorLog) Handle(_ context.Context, r slog.Record) error {
	var text strings.Builder
	text.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&text, " %s=%.2000v", a.Key, a.Value)
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, text.String())
	return nil
}

func (l *errorLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *errorLog) WithGroup(string) slog.Handler      { return l }

func (l *errorLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines
}

// odd makes requests that a caller could make, odd ones among them.
type odd struct {
	w      *town
	schema *ast.Schema
	r      *rand.Rand
	http   *http.Client
	ids    []string // of what there is
	uids   []string // of nodes
	epoch  string
	// machines are those of instances, by the names that their nodes have for them.
	machines []string
	odds     float64 // that a value of this request is odd
}

// collect takes the ids of what there is now, and some of what there is not.
func (o *odd) collect() {
	_, uid := o.w.join(fmt.Sprintf("a-%d", o.w.next())) // others may have been removed
	o.uids = []string{o.w.ids["own uid"], uid, uid, uid}
	o.w.launch(uid)
	o.w.service(o.w.launch(uid), "inside")
	o.ids = []string{"a1", "b1", o.w.ids["own uid"], o.w.ids["foreign uid"], "minimal", "i-999", "svc-999", "web", "on-a1", "n-0", "up", "own", "k-999", "t-1", "prod", "http", "192.0.2.1", "2001:db8::1"}
	a := o.w.ask(admin, `{ serverInfo { epoch clusterUid } instances(first: 60) { edges { node { id generation } } } services(first: 60) { edges { node { id } } } }`)
	var of struct {
		ServerInfo          struct{ Epoch, ClusterUID string }
		Instances, Services struct {
			Edges []struct {
				Node struct {
					ID         string
					Generation int
				}
			}
		}
	}
	text, _ := json.Marshal(a.data)
	if err := json.Unmarshal(text, &of); err != nil {
		o.w.t.Fatal(err)
	}
	o.epoch, o.machines = of.ServerInfo.Epoch, []string{"other-i-1-1"}
	for _, e := range of.Instances.Edges {
		o.ids = append(o.ids, e.Node.ID)
		o.machines = append(o.machines, fmt.Sprintf("%.6s-%s-%d", of.ServerInfo.ClusterUID, e.Node.ID, e.Node.Generation))
	}
	for _, e := range of.Services.Edges {
		o.ids = append(o.ids, e.Node.ID)
	}
}

// request is an operation with one field and its variables.
func (o *odd) request(kind string, f *ast.FieldDefinition) (query, variables string) {
	o.odds = o.one([]any{0.0, 0.0, 0.005, 0.02, 0.2}).(float64)
	values := map[string]any{}
	var declared, given []string
	for _, arg := range f.Arguments {
		if !arg.Type.NonNull && o.r.IntN(3) == 0 {
			continue
		}
		values[arg.Name] = o.value(arg.Name, arg.Type, 0)
		declared = append(declared, "$"+arg.Name+": "+arg.Type.String())
		given = append(given, arg.Name+": $"+arg.Name)
	}
	field := f.Name
	head := kind
	if len(declared) > 0 {
		head += "(" + strings.Join(declared, ", ") + ")"
		field += "(" + strings.Join(given, ", ") + ")"
	}
	text, err := json.Marshal(values)
	if err != nil {
		o.w.t.Fatal(err)
	}
	return head + " { " + field + " " + o.selection(f.Type, 3) + " }", string(text)
}

// selection takes all fields of a type, and those of its objects to some depth.
func (o *odd) selection(t *ast.Type, depth int) string {
	d := o.schema.Types[t.Name()]
	if d.Kind != ast.Object {
		return ""
	}
	names := []string{"__typename"}
	for _, f := range d.Fields {
		inner := o.schema.Types[f.Type.Name()]
		switch {
		case strings.HasPrefix(f.Name, "__") || f.Arguments.ForName("first") != nil && depth < 3:
		case inner.Kind != ast.Object:
			names = append(names, f.Name)
		case depth > 1:
			names = append(names, f.Name+" "+o.selection(f.Type, depth-1))
		}
	}
	return "{ " + strings.Join(names, " ") + " }"
}

// value is one of a type: what it should be, or something odd.
func (o *odd) value(name string, t *ast.Type, depth int) any {
	switch {
	case o.isOdd() && o.r.IntN(4) == 0:
		return o.one([]any{nil, "", -1, true, []any{}, map[string]any{}, 1e300})
	case !t.NonNull && o.r.IntN(3) == 0:
		return nil
	case t.Elem != nil:
		list := []any{}
		for range o.one([]any{0, 1, 1, 2, 5}).(int) {
			list = append(list, o.value(name, t.Elem, depth+1))
		}
		return list
	}
	d := o.schema.Types[t.Name()]
	switch d.Kind {
	case ast.Enum:
		if o.isOdd() {
			return "NONE"
		}
		return d.EnumValues[o.r.IntN(len(d.EnumValues))].Name
	case ast.InputObject:
		in := map[string]any{}
		for _, f := range d.Fields {
			if (f.Type.NonNull && f.DefaultValue == nil || o.r.IntN(3) > 0) && depth < 8 {
				in[f.Name] = o.value(f.Name, f.Type, depth+1)
			}
		}
		if _, both := in["instanceId"]; both && d.Fields.ForName("nodeSelector") != nil && !o.isOdd() {
			o.eitherOr(in)
		}
		return in
	}
	return o.scalar(name, t.Name())
}

// eitherOr has a service go into an instance that there is, or into one that is launched for it.
func (o *odd) eitherOr(in map[string]any) {
	gone := []string{"type", "image", "nodeId", "nodeSelector", "queue"}
	if in["type"] != nil && o.r.IntN(2) == 0 {
		gone = []string{"instanceId"}
	}
	for _, name := range gone {
		delete(in, name)
	}
}

func (o *odd) isOdd() bool { return o.r.Float64() < o.odds }

func (o *odd) scalar(name, kind string) any {
	if !o.isOdd() {
		return o.sane(name, kind)
	}
	switch kind {
	case "Boolean":
		return o.r.IntN(2) == 0
	case "Int", "Int64":
		return o.one([]any{0, -1, 65535, 65536, math.MaxInt32, math.MinInt32, int64(math.MaxInt64), int64(math.MinInt64)})
	case "Float":
		return o.one([]any{0, 1.5, -1, 1e300})
	case "Duration":
		return o.one([]any{"0s", "-1s", "1ns", "2562047h47m16s", "99999999h", "1d", "x", "", "1e3s", "5ms"})
	case "Time":
		return o.one([]any{"9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "x", "10000-01-01T00:00:00Z"})
	case "Cursor":
		return o.one([]any{"", "x", "AAAA", "eyJ9"})
	case "Bytes":
		return o.one([]any{"x", "!"})
	case "Map":
		return o.one([]any{map[string]any{"": "x"}, map[string]any{"a": "\x00"}, map[string]any{"zone": "{{ range 9 }}{{ end }}"}, map[string]any{"a": 1}, map[string]any{strings.Repeat("k", 300): "v"}})
	}
	return o.one([]any{
		"", " ", "x", "\x00", "a\nb", "../../etc", "/", "{{", "{{ .Node.Addr }}", "%s%n", strings.Repeat("x", 63), strings.Repeat("x", 70_000), "☃", "\u202e", "-", "--", ".", "..", "0", "-1", "i-0", "i-99999999999999999999", "svc-", "a b", "A", "*", ">", "[", "::", "1.2.3.4/8", "fe80::1%eth0", "null",
	})
}

// sane is a value as it should be.
func (o *odd) sane(name, kind string) any {
	switch kind {
	case "Boolean":
		return o.r.IntN(2) == 0
	case "Int", "Int64":
		if name == "incarnation" || name == "generation" {
			return 1
		}
		return o.one([]any{1, 2, 3, 10, 64, 128})
	case "Float":
		return o.one([]any{0, 1.5})
	case "Duration":
		return o.one([]any{"1s", "5s", "10s", "1m"})
	case "Time":
		return time.Now().Add(time.Hour).Format(time.RFC3339)
	case "Cursor":
		return nil
	case "Bytes":
		return "AAAA"
	case "Map":
		return o.one([]any{map[string]any{}, map[string]any{"a": "b"}, map[string]any{"zone": "{{ .Node.ID }}"}})
	}
	return o.text(name)
}

// text is a string that fits the name of its field.
func (o *odd) text(name string) string {
	switch strings.ToLower(name) {
	case "uid":
		return o.uids[o.r.IntN(len(o.uids))]
	case "epoch":
		return o.epoch
	case "machine":
		return o.machines[o.r.IntN(len(o.machines))]
	case "deployurl":
		return o.one([]any{"https://example.org/app.tar", "file:///srv/app", "file://x/y", "ftp://x/y", "http://", "https://a:b@example.org/", "://"}).(string)
	case "sha256":
		return strings.Repeat("ab", 32)
	case "digest", "imagedigest":
		return "sha256:" + strings.Repeat("ab", 32)
	case "role":
		return "COMPUTE"
	case "images", "image", "baseimage":
		return "minimal"
	case "address", "addr":
		return o.one([]any{"192.0.2.1", "10.0.0.1", "127.0.0.1"}).(string)
	case "command":
		return o.one([]any{"idle", "/bin/sh", "x"}).(string)
	case "name", "service", "cluster", "protocol", "check":
		return o.one([]any{"web", "prod", "http", "up", fmt.Sprint("s-", o.r.IntN(50)), "own"}).(string)
	case "requestid":
		return fmt.Sprint("r-", o.r.IntN(30))
	case "csr":
		return o.one([]any{"", "x", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"}).(string)
	case "user":
		return o.one([]any{"root", "65534", "nobody:nogroup", "a:b:c"}).(string)
	case "path", "dir", "hostpath", "hostpaths", "target":
		return o.one([]any{"/", "/srv", "/healthz"}).(string)
	}
	return o.ids[o.r.IntN(len(o.ids))]
}

func (o *odd) one(from []any) any { return from[o.r.IntN(len(from))] }

// send sends a request as who may make it, and returns the code of the first error.
func (o *odd) send(t *testing.T, field, query, variables string) string {
	caller := admin
	switch {
	case field == "joinNode":
		caller = joining
	case field == "renewCertificate":
		caller = node
	case o.r.IntN(5) == 0:
		caller = string("OoVvNR"[o.r.IntN(6)])
	}
	if field == "revokeAccessKey" && strings.Contains(variables, `"k-1"`) {
		return "FORBIDDEN" // it would end the test
	}
	body := fmt.Sprintf(`{"query": %q, "variables": %s}`, query, variables)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+o.w.Addr().String()+"/graphql", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+o.w.keys[caller])
	response, err := o.http.Do(request)
	if err != nil {
		t.Fatalf("%s\n%s\n%v", query, variables, err)
	}
	defer response.Body.Close()
	var of struct {
		Errors []struct {
			Message    string
			Extensions struct{ Code string }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&of); err != nil {
		t.Fatalf("%s\n%s\nan answer that is no JSON: %v", query, variables, err)
	}
	for _, e := range of.Errors {
		if e.Extensions.Code == "INTERNAL" || e.Message == "" {
			return "INTERNAL"
		}
	}
	switch {
	case len(of.Errors) > 0:
		return of.Errors[0].Extensions.Code
	case response.StatusCode != http.StatusOK:
		return fmt.Sprint(response.StatusCode)
	}
	return ""
}
