package transport_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/transport"
)

const (
	jsonType     = "application/json"
	responseType = "application/graphql-response+json"
)

// exchange sends a request and returns the answer with its body.
func (f *fixture) exchange(method, target, body string, header map[string]string) (*http.Response, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.server.URL+target, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Content-Type", jsonType)
	for key, value := range header {
		r.Header.Set(key, value)
	}
	response, err := f.server.Client().Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return response, string(b)
}

// query posts a text and returns the body of the answer.
func (f *fixture) query(text string, variables map[string]any) string {
	f.t.Helper()
	b, err := json.Marshal(map[string]any{"query": text, "variables": variables})
	if err != nil {
		f.t.Fatal(err)
	}
	_, body := f.exchange(http.MethodPost, "/", string(b), nil)
	return body
}

func TestHTTP_Exchanges(t *testing.T) {
	const version = `{"query":"{ serverInfo { version } }"}`
	get := func(query string) string { return "/?query=" + url.QueryEscape(query) }
	for _, tc := range []struct {
		name                 string
		method, target, body string
		header               map[string]string
		status               int
		mediaType, want      string
	}{
		{"post", "POST", "/", version, nil, 200, jsonType, `{"data":{"serverInfo":{"version":"1.2.3"}}}`},
		{"post, newer type", "POST", "/", version, map[string]string{"Accept": responseType}, 200, responseType, `{"data":`},
		{"any type", "POST", "/", version, map[string]string{"Accept": "*/*"}, 200, jsonType, `{"data":`},
		{"weights", "POST", "/", version, map[string]string{"Accept": responseType + ";q=0.5, application/json;q=0.9"}, 200, jsonType, `{"data":`},
		{"weight of zero", "POST", "/", version, map[string]string{"Accept": "application/json;q=0, */*"}, 406, jsonType, `{"errors":[{"message":"accept `},
		{"no type that is served", "POST", "/", version, map[string]string{"Accept": "text/html"}, 406, jsonType, `{"errors":[{"message":"accept `},
		{"get", "GET", get("{ serverInfo { version } }"), "", nil, 200, jsonType, `{"data":`},
		{"get with variables", "GET", get("query($i: ID!) { node(id: $i) { id } }") + "&variables=" + url.QueryEscape(`{"i":"n9"}`), "", nil, 200, jsonType, `{"data":{"node":{"id":"n9"}}}`},
		{"get with bad variables", "GET", get("{ serverInfo { version } }") + "&variables=7", "", nil, 400, jsonType, `{"errors":[{"message":"variables has to be a JSON object"`},
		{"get of a mutation", "GET", get(`mutation { heartbeat(input: {uid: "u", incarnation: 1}) { epoch } }`), "", nil, 405, jsonType, `{"errors":[{"message":"a mutation needs POST`},
		{"get of a subscription", "GET", get("subscription { nodeChanges { type } }"), "", nil, 405, jsonType, `{"errors":[{"message":"a subscription needs POST`},
		{"get of nothing", "GET", "/", "", nil, 400, jsonType, `{"errors":[{"message":"query: it is missing`},
		{"subscription", "POST", "/", `{"query":"subscription { nodeChanges { type } }"}`, map[string]string{"Accept": responseType}, 400, responseType, `{"errors":[{"message":"a subscription needs WebSocket`},
		{"put", "PUT", "/", version, nil, 405, jsonType, `{"errors":[{"message":"the method PUT`},
		{"text", "POST", "/", version, map[string]string{"Content-Type": "text/plain"}, 415, jsonType, `{"errors":[{"message":"send the request as application/json`},
		{"form", "POST", "/", "query={a}", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415, jsonType, `{"errors":`},
		{"multipart", "POST", "/", version, map[string]string{"Content-Type": "multipart/form-data; boundary=x"}, 415, jsonType, `{"errors":`},
		{"latin", "POST", "/", version, map[string]string{"Content-Type": "application/json; charset=latin1"}, 415, jsonType, `{"errors":`},
		{"utf-8", "POST", "/", version, map[string]string{"Content-Type": "application/json; charset=UTF-8"}, 200, jsonType, `{"data":`},
		{"something follows", "POST", "/", version + "{}", nil, 400, jsonType, `{"errors":[{"message":"the body is not one GraphQL request`},
		{"a batch", "POST", "/", "[" + version + "]", nil, 400, jsonType, `{"errors":[{"message":"the body is not one GraphQL request`},
		{"bad JSON", "POST", "/", `{"query":`, nil, 400, jsonType, `{"errors":[{"message":"the body is not one GraphQL request`},
		{"syntax error", "POST", "/", `{"query":"{"}`, nil, 200, jsonType, `{"errors":[{"message":"Expected Name, found`},
		{"syntax error, newer type", "POST", "/", `{"query":"{"}`, map[string]string{"Accept": responseType}, 400, responseType, `{"errors":[{"message":"Expected Name, found`},
		{"no such operation", "POST", "/", `{"query":"query A { serverInfo { version } }","operationName":"B"}`, nil, 200, jsonType, `{"errors":[{"message":"operation B not found","extensions":{"code":"INVALID"}}]}`},
		{"other site", "POST", "/", version, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, jsonType, `{"errors":[{"message":"this page's origin may not call`},
		{"a query of another site", "GET", "/?query={serverInfo{version}}", "", map[string]string{"Sec-Fetch-Site": "same-site"}, 403, jsonType, `{"errors":[{"message":"this page's origin may not call`},
		{"a link that was typed", "GET", "/?query={serverInfo{version}}", "", map[string]string{"Sec-Fetch-Site": "none"}, 200, jsonType, `{"data":`},
		{"the question of another site's browser", "OPTIONS", "/", "", map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, 403, jsonType, `{"errors":`},
		{"allowed origin", "POST", "/", version, map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://console.example"}, 200, jsonType, `{"data":`},
		{"bad key", "POST", "/", version, map[string]string{"Authorization": "bad"}, 401, jsonType, `{"errors":[{"message":"the key is not known","extensions":{"code":"UNAUTHENTICATED"}}]}`},
		{"a role that is too low", "POST", "/", `{"query":"mutation { heartbeat(input: {uid: \"u\", incarnation: 1}) { epoch } }"}`, map[string]string{"Authorization": "viewer"}, 200, jsonType, `{"errors":[{"message":"the role NODE is needed"`},
		{"10 MB", "POST", "/", `{"query":"` + strings.Repeat(" ", 10<<20) + `"}`, nil, 413, jsonType, `{"errors":[{"message":"the body has more than 1048576 bytes`},
		{"100 KB of a query", "POST", "/", `{"query":"{ serverInfo { version } }` + strings.Repeat(" ", 100<<10) + `"}`, nil, 429, jsonType, `{"errors":[{"message":"the request has 102`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, transport.Options{
				Origins: []string{"https://console.example"},
				Authenticate: func(ctx context.Context, r *http.Request, _ map[string]any) (muster.Principal, error) {
					return authenticate(ctx, r, map[string]any{"key": r.Header.Get("Authorization")})
				},
			})
			response, body := f.exchange(tc.method, tc.target, tc.body, tc.header)
			if response.StatusCode != tc.status {
				t.Errorf("status %d, want %d", response.StatusCode, tc.status)
			}
			if got := response.Header.Get("Content-Type"); got != tc.mediaType+"; charset=utf-8" {
				t.Errorf("type %q", got)
			}
			if !strings.HasPrefix(body, tc.want) {
				t.Errorf("body %.200s\nwant %s", body, tc.want)
			}
			if tc.status == http.StatusMethodNotAllowed && response.Header.Get("Allow") == "" {
				t.Error("no Allow")
			}
		})
	}
}

func TestHTTP_LargeReportOfAnAgent(t *testing.T) {
	f := newFixture(t, transport.Options{})
	input := map[string]any{
		"uid": "u", "incarnation": 1, "sequence": 1, "epoch": epoch, "appliedRevision": 1, "instances": []any{
			map[string]any{"machine": strings.Repeat("m", 500<<10), "epoch": epoch, "id": "i-1", "generation": 1, "status": "RUNNING"},
		},
	}
	body := f.query(`mutation($input: ReportInstancesInput!) { reportInstances(input: $input) { revision } }`, map[string]any{"input": input})
	if body != `{"data":{"reportInstances":{"revision":1}}}` {
		t.Errorf("got %.200s", body)
	}
}

func TestErrors_AreOfTheClosedList(t *testing.T) {
	for _, tc := range []struct {
		name, query string
		variables   map[string]any
		want        string
	}{
		{"known", `{ node(id: "gone") { id } }`, nil, `{"errors":[{"message":"no node gone; list them with nodes","path":["node"],"locations":[{"line":1,"column":3}],"extensions":{"code":"NOT_FOUND"}}],"data":{"node":null}}`},
		{"a field of an input", `mutation { cordonNode(input: {id: "a", reason: "x"}) { revision } }`, nil, `"extensions":{"code":"INVALID","field":"reason"}`},
		{"a wrong variable", `query($f: Int) { nodes(first: $f) { totalCount } }`, map[string]any{"f": "x"}, `"extensions":{"code":"INVALID","field":"f"}`},
		{"a wrong part of a variable", `mutation($input: HeartbeatInput!) { heartbeat(input: $input) { epoch } }`, map[string]any{"input": map[string]any{"uid": "u"}}, `"extensions":{"code":"INVALID","field":"incarnation"}`},
		{"a wrong scalar", `{ changes(since: "x") { oldest } }`, nil, `"extensions":{"code":"INVALID","field":"cursor"}`},
		{"a wrong scalar in an input", `mutation { launchInstance(input: {type: NANO, queueTimeout: "soon"}) { revision } }`, nil, `"extensions":{"code":"INVALID","field":"queueTimeout"}`},
		{"an unknown value", `{ nodes(filter: {role: NOPE}) { totalCount } }`, nil, `"code":"INVALID"`},
		{"time", `{ node(id: "slow") { id } }`, nil, `"code":"UNAVAILABLE"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, transport.Options{OperationTime: 200 * time.Millisecond})
			if got := f.query(tc.query, tc.variables); !strings.Contains(got, tc.want) {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if f.handler.Stats().Internal != 0 {
				t.Error("it was counted as INTERNAL")
			}
		})
	}
}

func TestErrors_InternalsStayInside(t *testing.T) {
	for _, query := range []string{
		`{ node(id: "boom") { id } }`, `{ node(id: "panic") { id } }`, `{ instanceTypes { type } }`, `{ node(id: "a") { changes { reason } } }`,
	} {
		t.Run(query, func(t *testing.T) {
			var log strings.Builder
			f := newFixture(t, transport.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			body := f.query(query, nil)
			var answer struct {
				Errors []struct {
					Message    string
					Extensions struct{ Code, Reference string }
				}
			}
			if err := json.Unmarshal([]byte(body), &answer); err != nil || len(answer.Errors) != 1 {
				t.Fatalf("%v in %s", err, body)
			}
			e := answer.Errors[0].Extensions
			if e.Code != "INTERNAL" || len(e.Reference) != 12 || strings.Contains(body, "secret") || strings.Contains(body, "nil pointer") {
				t.Errorf("got %s", body)
			}
			if !strings.Contains(log.String(), e.Reference) || f.handler.Stats().Internal != 1 {
				t.Errorf("the log has no %s: %s", e.Reference, log.String())
			}
		})
	}
}

func TestErrors_SuggestNothing(t *testing.T) {
	for _, tc := range []struct {
		query     string
		variables map[string]any
	}{
		{`{ serverInf { version } }`, nil},
		{`{ serverInfo { versio } }`, nil},
		{`{ nodes(firs: 1) { totalCount } }`, nil},
		{`{ nodes(filter: {rol: COMPUTE}) { totalCount } }`, nil},
		{`{ nodes(filter: {role: COMPUT}) { totalCount } }`, nil},
		{`query($f: NodeFilte) { nodes(filter: $f) { totalCount } }`, nil},
		{`{ serverInfo }`, nil},
		{`query($f: NodeFilter) { nodes(filter: $f) { totalCount } }`, map[string]any{"f": map[string]any{"rol": "COMPUTE"}}},
		{`query($f: NodeFilter) { nodes(filter: $f) { totalCount } }`, map[string]any{"f": map[string]any{"role": "COMPUT"}}},
	} {
		got := newFixture(t, transport.Options{}).query(tc.query, tc.variables)
		if strings.Contains(got, "mean") || strings.Contains(got, "{ ... }") || !strings.Contains(got, `"code":"INVALID"`) {
			t.Errorf("%s: %s", tc.query, got)
		}
	}
}

func TestHTTP_SharesItsAnswersWithAllowedOriginsAlone(t *testing.T) {
	f := newFixture(t, transport.Options{Origins: []string{"https://console.example"}})
	for _, tc := range []struct {
		method, origin, allowed string
		status                  int
	}{
		{"OPTIONS", "https://console.example", "https://console.example", 204},
		{"POST", "https://console.example", "https://console.example", 200},
		{"OPTIONS", "https://console.example.evil.example", "", 403},
		{"POST", "https://evil.example", "", 403},
		{"POST", "null", "", 403},
	} {
		t.Run(tc.method+" "+tc.origin, func(t *testing.T) {
			response, _ := f.exchange(tc.method, "/", `{"query":"{ serverInfo { version } }"}`, map[string]string{"Origin": tc.origin})
			if got := response.Header.Get("Access-Control-Allow-Origin"); got != tc.allowed || response.StatusCode != tc.status {
				t.Errorf("status %d, shared with %q", response.StatusCode, got)
			}
			if got := response.Header.Get("Access-Control-Allow-Credentials"); got != "" {
				t.Errorf("credentials are let in: %q", got)
			}
		})
	}
}
