package graph_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/99designs/gqlgen/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph"
	"github.com/muster-cloud/muster/graph/transport"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/store"
	"github.com/muster-cloud/muster/registry/watch"
)

// deafAgents are agents that no nudge reaches.
type deafAgents struct{}

func (deafAgents) Nudge(context.Context, registry.Nudge) error { return nil }

func (deafAgents) Identify(context.Context, *muster.Node) (muster.NodeUID, int64, error) {
	return "", 0, fmt.Errorf("nobody answers")
}

// api is the whole API on a real registry.
type api struct {
	*httptest.Server
	registry *registry.Registry
	store    *store.Store
}

func newAPI(t *testing.T) *api {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	hub := watch.New(st, watch.Options{})
	r, err := registry.Open(t.Context(), registry.Deps{
		Store: st, History: st, Hub: hub, Agents: deafAgents{}, Logger: slog.New(slog.DiscardHandler),
	}, registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.Listening()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	h := transport.New(graph.NewSchema(r), hub, transport.Options{AroundResponses: []graphql.ResponseMiddleware{graph.Loaders(r)}})
	a := &api{httptest.NewServer(h), r, st}
	t.Cleanup(func() {
		_ = h.Shutdown(context.Background())
		a.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

type answer struct {
	Data   json.RawMessage
	Errors []struct {
		Message    string
		Extensions map[string]any
	}
}

func (a *api) ask(t *testing.T, query string, variables map[string]any) answer {
	t.Helper()
	body, err := json.Marshal(map[string]any{"query": query, "variables": variables})
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Post(a.URL, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out answer
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

func (a *api) must(t *testing.T, query string, variables map[string]any) string {
	t.Helper()
	out := a.ask(t, query, variables)
	if len(out.Errors) > 0 {
		t.Fatalf("%s: %+v", query, out.Errors)
	}
	return string(out.Data)
}

const (
	register = `mutation($id: ID!) { registerNode(input: {id: $id, hostname: "h", addr: "192.0.2.7", port: 8080, cpuCount: 8, memoryMb: 16384, incarnation: 1, images: ["minimal"], labels: {zone: "a"}}) { node { uid } } }`
	launch   = `mutation { launchInstance(input: {type: NANO, env: {TOKEN: "secret"}}) { instance { id name status node { id } type cpuLimit memLimitMb baseImage addr createdAt statusReason envNames } revision } }`
)

func TestGraph_NodesInstancesAndChangesInOneRead(t *testing.T) {
	a := newAPI(t)
	for _, id := range []string{"a", "b", "c"} {
		a.must(t, register, map[string]any{"id": id})
	}
	for range 30 {
		a.must(t, launch, nil)
	}
	const query = `{ nodes { edges { node { id allocated { instances } instances { totalCount edges { node { id node { id } changes(first: 3) { revision status reason instance { id } } } } } } } } }`
	a.must(t, query, nil) // statements are prepared the first time
	before := a.store.Statements()
	data := a.must(t, query, nil)
	if n := a.store.Statements() - before; n > 3 {
		t.Errorf("%d SQL statements for 3 nodes and 30 instances with their changes, want one read", n)
	}
	if got := strings.Count(data, `"reason":"launched"`); got != 30 {
		t.Errorf("%d changes in the answer, want 30: %s", got, data)
	}
	if strings.Contains(data, "secret") {
		t.Error("a value of the environment is in the answer")
	}
}

func TestGraph_LaunchAnswersWithTheInstance(t *testing.T) {
	a := newAPI(t)
	a.must(t, register, map[string]any{"id": "n1"})
	var out struct {
		LaunchInstance struct {
			Instance map[string]any
			Revision int64
		}
	}
	if err := json.Unmarshal([]byte(a.must(t, launch, nil)), &out); err != nil {
		t.Fatal(err)
	}
	i := out.LaunchInstance.Instance
	delete(i, "createdAt")
	want := `map[addr:10.213.0.2 baseImage:minimal cpuLimit:25 envNames:[TOKEN] id:i-1 memLimitMb:128 name:i-1 node:map[id:n1] status:PROVISIONING statusReason: type:NANO]`
	if got := fmt.Sprint(i); got != want || out.LaunchInstance.Revision != 2 {
		t.Errorf("got %s at %d\nwant %s at 2", got, out.LaunchInstance.Revision, want)
	}
}

func TestGraph_Errors(t *testing.T) {
	a := newAPI(t)
	a.must(t, register, map[string]any{"id": "n1"})
	for name, c := range map[string]struct{ query, code, field string }{
		"an empty id":             {`{ node(id: "") { id } }`, "INVALID", "id"},
		"a long id":               {`{ instance(id: "` + strings.Repeat("x", 300) + `") { id } }`, "INVALID", "id"},
		"a NUL in a filter":       {`{ instances(filter: {nodeId: "a\u0000"}) { totalCount } }`, "INVALID", "nodeId"},
		"a page too large":        {`{ nodes(first: 1000000) { totalCount } }`, "INVALID", "first"},
		"a page of none":          {`{ nodes(first: 0) { totalCount } }`, "INVALID", "first"},
		"a cursor that is none":   {`{ changes(since: "nonsense") { oldest } }`, "INVALID", ""},
		"an unknown enum value":   {`mutation { launchInstance(input: {type: HUGE}) { revision } }`, "INVALID", ""},
		"a map of numbers":        {`mutation { launchInstance(input: {type: NANO, labels: {a: 1}}) { revision } }`, "INVALID", ""},
		"an image nobody has":     {`mutation { launchInstance(input: {type: NANO, image: "nosuch"}) { revision } }`, "INVALID", "image"},
		"no capacity":             {`mutation { launchInstance(input: {type: NANO, nodeSelector: {zone: "b"}}) { revision } }`, "NO_CAPACITY", ""},
		"an instance that is not": {`mutation { stopInstance(input: {id: "i-99"}) { revision } }`, "NOT_FOUND", ""},
		"a beat of a stranger":    {`mutation { heartbeat(input: {uid: "n-0", incarnation: 1}) { nextBeatIn } }`, "UNKNOWN_NODE", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := a.ask(t, c.query, nil)
			if len(out.Errors) != 1 {
				t.Fatalf("errors %+v", out.Errors)
			}
			e := out.Errors[0]
			if e.Extensions["code"] != c.code {
				t.Errorf("code %v (%s), want %s", e.Extensions["code"], e.Message, c.code)
			}
			if c.field != "" && e.Extensions["field"] != c.field {
				t.Errorf("field %v (%s), want %s", e.Extensions["field"], e.Message, c.field)
			}
		})
	}
}

func TestGraph_ReadsEverythingOfAFreshCluster(t *testing.T) {
	a := newAPI(t)
	a.must(t, register, map[string]any{"id": "n1"})
	data := a.must(t, `{
		instanceTypes { type cpuLimit memLimitMb }
		clusterHealth { status revision nodes { status count } instances { status count } conditions { name status reason since until } brake { state reason since releasesAt } }
		serverInfo { version clusterUid clusterShortId epoch revision cursor oldestRevision startedAt heartbeatInterval unhealthyAfter pruneAfter }
		node(id: "n1") { uid status statusSince unhealthyBecause { reason lastBeat silence missedBeats clockSkew exitCode } lastSeen desiredRevision free { cpuPercent memoryMb instances } }
		changes { oldest edges { cursor node { revision kind objectId status actor node { id } } } pageInfo { hasNextPage } }
	}`, nil)
	for _, want := range []string{`"name":"STARTUP_GRACE"`, `"heartbeatInterval":"10s"`, `"unhealthyBecause":null`, `"instances":253`, `"actor":"node n1"`, `"brake":{"state":"CLEAR","reason":"it has never held","since":null,"releasesAt":null}`} {
		if !strings.Contains(data, want) {
			t.Errorf("the answer lacks %s: %s", want, data)
		}
	}
}
