package server_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// way is what was decided about a route: written by hand, as the rules of the fields.
type way struct {
	public        bool   // strangers are let in too
	open          string // the callers that are
	method, path  string // a request
	body          string
	bodyEach      func(w *town) string // instead of body, another one each time
	wantsItsStart bool                 // of a public route: 200 and nothing else
}

func ways() map[string]way {
	const reads = admin + operator + viewer
	return map[string]way{
		"/graphql":     {open: everybody, method: "POST", path: "/graphql", body: `{"query": "{ __typename }"}`},
		"/playground":  {public: true, method: "GET", path: "/playground"},
		"/playground/": {public: true, method: "GET", path: "/playground/"},
		"POST /sign-in": {public: true, method: "POST", path: "/sign-in", bodyEach: func(w *town) string {
			_, code, _ := strings.Cut(w.must(viewer, `mutation { createSignIn(input: {}) { path } }`, "createSignIn", "path"), "#")
			return fmt.Sprintf(`{"code": %q}`, code)
		}, wantsItsStart: true},
		"POST /sign-out":               {open: strings.Replace(everybody, joining, "", 1), method: "POST", path: "/sign-out"},
		"PUT /images/{name}":           {open: admin + operator, method: "PUT", path: "/images/x", body: "no archive"},
		"GET /images/blobs/{digest}":   {open: admin + node, method: "GET", path: "/images/blobs/sha256:" + strings.Repeat("a", 64)},
		"GET /exec/{instance}":         {open: admin + operator + scopedOperator, method: "GET", path: "/exec/i-1"},
		"GET /exec/sessions/{session}": {open: admin + node, method: "GET", path: "/exec/sessions/none"},
		"GET /healthz":                 {public: true, method: "GET", path: "/healthz", wantsItsStart: true},
		"GET /readyz":                  {public: true, method: "GET", path: "/readyz", wantsItsStart: true},
		"GET /discovery/prometheus":    {open: lookers, method: "GET", path: "/discovery/prometheus"},
		"GET /metrics":                 {open: reads, method: "GET", path: "/metrics"},
		"GET /debug/pprof/":            {open: admin, method: "GET", path: "/debug/pprof/heap"},
		"GET /debug/pprof/profile":     {open: admin, method: "GET", path: "/debug/pprof/profile?seconds=1"},
		"GET /debug/pprof/trace":       {open: admin, method: "GET", path: "/debug/pprof/trace?seconds=0.01"},
		"GET /{$}":                     {public: true, method: "GET", path: "/"},
	}
}

// Every route that is served has a rule here, and every rule its route.
func TestMatrix_Routes(t *testing.T) {
	w := newTown(t)
	rules := ways()
	for pattern := range rules {
		if !slices.Contains(w.Patterns(), pattern) {
			t.Errorf("%s has a rule here, and is not served", pattern)
		}
	}
	for _, pattern := range w.Patterns() {
		rule, ok := rules[pattern]
		if !ok {
			t.Errorf("%s is new: decide who may use it, and write its rule down here", pattern)
			continue
		}
		t.Run(pattern, func(t *testing.T) {
			for _, name := range append(strings.Split(everybody, ""), strangers()...) {
				w.checkRoute(t, rule, name)
			}
		})
	}
	if a := w.http(w.fresh("no key"), "GET", "/nowhere", ""); a.status != http.StatusNotFound {
		t.Errorf("a route that there is not: %d", a.status)
	}
}

func (w *town) checkRoute(t *testing.T, rule way, name string) {
	t.Helper()
	body := rule.body
	if rule.bodyEach != nil {
		body = rule.bodyEach(w)
	}
	a := w.http(w.fresh(name), rule.method, rule.path, body)
	stranger := slices.Contains(strangers(), name)
	switch {
	case rule.public && (a.status >= http.StatusBadRequest || rule.wantsItsStart && a.status != http.StatusOK),
		strings.Contains(rule.open, name) && (a.status == http.StatusUnauthorized || a.status == http.StatusForbidden):
		t.Errorf("%s is let through, and got %d %s", name, a.status, a.body)
	case rule.public, strings.Contains(rule.open, name):
	case stranger && (a.status != http.StatusUnauthorized || a.code != "UNAUTHENTICATED"),
		!stranger && (a.status != http.StatusForbidden || a.code != "FORBIDDEN"):
		t.Errorf("%s is not let through, and got %d %s", name, a.status, a.body)
	}
}

func TestMatrix_CommandsInInstancesOutsideOfAScope(t *testing.T) {
	w := newTown(t)
	for object, want := range map[string]muster.Code{"own instance": muster.Conflict, "foreign instance": muster.NotFound} {
		c, err := client.New(client.Options{URL: w.URL(), Key: w.keys[scopedOperator]})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Exec(t.Context(), muster.InstanceID(w.ids[object]), muster.ExecRequest{Command: []string{"true"}}, client.ExecStreams{})
		if muster.CodeOf(err) != want {
			t.Errorf("%s: %v", object, err)
		}
		_ = c.Close()
	}
}
