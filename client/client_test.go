package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// request is what a call sends.
type request struct {
	OperationName string         `json:"operationName"`
	Variables     map[string]any `json:"variables"`
}

// scripted answers each call by what answer returns, and keeps what was asked.
type scripted struct {
	t      *testing.T
	answer func(n int, r request) (status int, body string)
	asked  []request
	header http.Header
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	var asked request
	if err := json.Unmarshal(body, &asked); err != nil {
		s.t.Error(err)
	}
	s.asked, s.header = append(s.asked, asked), r.Header
	status, text := s.answer(len(s.asked), asked)
	if status == 0 {
		panic(http.ErrAbortHandler) // the connection breaks
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

const noNodes = `{"data":{"node":null}}`

func refusal(code string) string {
	return fmt.Sprintf(`{"data":null,"errors":[{"message":"said the server","extensions":{"code":%q}}]}`, code)
}

func TestClient_MapsErrors(t *testing.T) {
	cases := map[string]struct {
		status int
		body   string
		want   muster.Code
	}{
		"none found":             {200, noNodes, muster.NotFound},
		"a code":                 {200, refusal("CONFLICT"), muster.Conflict},
		"a code in a refusal":    {400, refusal("LIMIT"), muster.Limit},
		"a code of the future":   {200, refusal("TEAPOT"), muster.Internal},
		"no code":                {200, `{"errors":[{"message":"Cannot query field"}]}`, muster.Invalid},
		"errors without any":     {200, `{"errors":[null]}`, muster.Internal},
		"unauthorized":           {401, "", muster.Unauthenticated},
		"forbidden":              {403, "", muster.Forbidden},
		"not muster":             {404, "<html>nothing here</html>", muster.Invalid},
		"foreign host":           {421, "", muster.Invalid},
		"too large":              {413, "", muster.Limit},
		"too many":               {429, "", muster.Limit},
		"a defect":               {500, "", muster.Internal},
		"bad gateway":            {502, "<html>", muster.Unavailable},
		"no answer":              {0, "", muster.Unavailable},
		"unavailable":            {200, refusal("UNAVAILABLE"), muster.Unavailable},
		"not JSON":               {200, "<html>", muster.Internal},
		"JSON of something else": {200, `{"data":{"node":"text"}}`, muster.Internal},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &scripted{t: t, answer: func(int, request) (int, string) { return c.status, c.body }}
				api := serve(t, server, client.Options{})
				_, err := api.Node(t.Context(), "n")
				own, ok := errors.AsType[*muster.Error](err)
				if !ok || own.Code != c.want || own.Message == "" {
					t.Errorf("got %v (%s), want %s", err, muster.CodeOf(err), c.want)
				}
				want := 1
				if c.want == muster.Unavailable {
					want = 4
				}
				if len(server.asked) != want {
					t.Errorf("the server was asked %d times, want %d", len(server.asked), want)
				}
			})
		})
	}
}

func TestClient_KeepsDetailsOfErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := `{"errors":[{"message":"nothing fits","extensions":{"code":"NO_CAPACITY","nodes":{"a":"full"}}}]}`
		api := serve(t, &scripted{t: t, answer: func(int, request) (int, string) { return 200, body }}, client.Options{})
		_, err := api.LaunchInstance(t.Context(), muster.LaunchInstanceInput{Type: muster.Nano})
		own, _ := errors.AsType[*muster.Error](err)
		want := &muster.Error{Code: muster.NoCapacity, Message: "nothing fits", Details: map[string]any{"nodes": map[string]any{"a": "full"}}}
		if diff := cmp.Diff(want, own); diff != "" {
			t.Error(diff)
		}
	})
}

func TestClient_RepeatsOnlyWhatIsSafe(t *testing.T) {
	calls := map[string]struct {
		call func(context.Context, *client.Client) error
		want int
	}{
		"a query": {func(ctx context.Context, c *client.Client) error { _, err := c.ServerInfo(ctx); return err }, 4},
		"a launch": {func(ctx context.Context, c *client.Client) error {
			_, err := c.LaunchInstance(ctx, muster.LaunchInstanceInput{Type: muster.Nano})
			return err
		}, 4},
		"a stop":    {func(ctx context.Context, c *client.Client) error { _, err := c.StopInstance(ctx, "i-1"); return err }, 1},
		"a restart": {func(ctx context.Context, c *client.Client) error { _, err := c.RestartInstance(ctx, "i-1"); return err }, 1},
		"a removal": {func(ctx context.Context, c *client.Client) error { _, err := c.RemoveNode(ctx, "n"); return err }, 1},
		"a release": {func(ctx context.Context, c *client.Client) error { _, err := c.ReleaseBrake(ctx, ""); return err }, 1},
		"an agent's": {func(ctx context.Context, c *client.Client) error {
			_, err := c.Heartbeat(ctx, muster.HeartbeatInput{})
			return err
		}, 1},
		"assignments": {func(ctx context.Context, c *client.Client) error { _, err := c.Assignments(ctx, "u", 1); return err }, 1},
		"peers":       {func(ctx context.Context, c *client.Client) error { _, err := c.Peers(ctx, "u", 1); return err }, 1},
		"registration": {func(ctx context.Context, c *client.Client) error {
			_, err := c.RegisterNode(ctx, muster.RegisterNodeInput{})
			return err
		}, 1},
		"a report": {func(ctx context.Context, c *client.Client) error {
			_, err := c.ReportInstances(ctx, muster.ReportInstancesInput{})
			return err
		}, 1},
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &scripted{t: t, answer: func(int, request) (int, string) { return 503, "" }}
				err := c.call(t.Context(), serve(t, server, client.Options{}))
				if muster.CodeOf(err) != muster.Unavailable {
					t.Errorf("got %v, want UNAVAILABLE", err)
				}
				if len(server.asked) != c.want {
					t.Errorf("the server was asked %d times, want %d", len(server.asked), c.want)
				}
			})
		})
	}
}

func TestClient_RepeatsALaunchWithTheSameRequestID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{t: t, answer: func(n int, _ request) (int, string) {
			if n < 3 {
				return 0, ""
			}
			return 200, `{"data":{"launchInstance":{"instance":{"id":"i-1","node":{"id":"a","uid":"n-1"},"status":"PROVISIONING"}}}}`
		}}
		api := serve(t, server, client.Options{Key: "secret", UserAgent: "test"})
		timeout := 90 * time.Second
		i, err := api.LaunchInstance(t.Context(), muster.LaunchInstanceInput{Type: muster.Nano, Queue: true, QueueTimeout: &timeout})
		if err != nil {
			t.Fatal(err)
		}
		if i.ID != "i-1" || i.Node == nil || i.Node.UID != "n-1" || i.Status != muster.Provisioning {
			t.Errorf("the answer was read as %+v", i)
		}
		ids := map[any]bool{}
		for _, asked := range server.asked {
			input, _ := asked.Variables["input"].(map[string]any)
			ids[input["requestId"]] = true
			if input["queueTimeout"] != "1m30s" {
				t.Errorf("the timeout went out as %v", input["queueTimeout"])
			}
			if _, ok := input["image"]; ok {
				t.Error("an image was named where the server's default was meant")
			}
		}
		if len(server.asked) != 3 || len(ids) != 1 || ids[""] || ids[nil] {
			t.Errorf("%d tries with the requestIds %v, want 3 with one that is not empty", len(server.asked), ids)
		}
		if server.header.Get("Authorization") != "Bearer secret" || server.header.Get("User-Agent") != "test" {
			t.Errorf("the header was %v", server.header)
		}
	})
}

func TestClient_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		server := &scripted{t: t, answer: func(int, request) (int, string) { cancel(); return 503, "" }}
		_, err := serve(t, server, client.Options{}).ClusterHealth(ctx)
		if !errors.Is(err, context.Canceled) && muster.CodeOf(err) != muster.Unavailable || len(server.asked) != 1 {
			t.Errorf("%d tries ended with %v", len(server.asked), err)
		}
	})
}

func TestClient_LeavesASilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		})
		api := serve(t, hang, client.Options{Timeout: 3 * time.Second})
		began := time.Now()
		_, err := api.StopInstance(t.Context(), "i-1")
		if muster.CodeOf(err) != muster.Unavailable || time.Since(began) != 3*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func TestClient_EndsACallWithAllOfItsTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{t: t, answer: func(int, request) (int, string) { return http.StatusServiceUnavailable, "" }}
		api := serve(t, server, client.Options{Within: 5 * time.Second, Tries: 1000})
		began := time.Now()
		_, err := api.ClusterHealth(t.Context())
		if muster.CodeOf(err) != muster.Unavailable || time.Since(began) > 5*time.Second || len(server.asked) < 3 {
			t.Errorf("after %s and %d tries: %v", time.Since(began), len(server.asked), err)
		}
	})
}

func TestClient_GoesThroughAllPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := func(id, end string, more bool) string {
			return fmt.Sprintf(`{"data":{"nodes":{"edges":[{"cursor":%q,"node":{"id":%q,"lastSeen":null}}],"pageInfo":{"hasNextPage":%t,"endCursor":%q}}}}`, end, id, more, end)
		}
		server := &scripted{t: t, answer: func(n int, _ request) (int, string) {
			return 200, page(fmt.Sprint("node-", n), fmt.Sprint("c", n), n < 3)
		}}
		api := serve(t, server, client.Options{})
		var ids []string
		for n, err := range api.AllNodes(t.Context(), &muster.NodeFilter{Labels: muster.Map{"zone": "a"}}) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, string(n.ID))
		}
		if got := strings.Join(ids, " "); got != "node-1 node-2 node-3" {
			t.Errorf("went through %s", got)
		}
		filter := map[string]any{"labels": map[string]any{"zone": "a"}}
		want := []map[string]any{
			{"filter": filter, "first": 100.0},
			{"filter": filter, "first": 100.0, "after": "c1"},
			{"filter": filter, "first": 100.0, "after": "c2"},
		}
		for k, asked := range server.asked {
			if diff := cmp.Diff(want[k], asked.Variables); diff != "" {
				t.Errorf("page %d: %s", k+1, diff)
			}
		}
	})
}

func TestClient_ReadsTheAgentsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := map[string]string{
			"Heartbeat": `{"data":{"heartbeat":{"nextBeatIn":"10s","epoch":"e","desiredRevision":7,"reportSequence":3,"peers":"p"}}}`,
			"ReadPeers": `{"data":{"peers":{"tag":"p","network":"10.213.0.0/16","subnet":"10.213.1.0/24","nodes":[{"id":"b","addr":"192.0.2.8","subnet":"10.213.2.0/24"}]}}}`,
			"ReadAssignments": `{"data":{"assignments":{"epoch":"e","desiredRevision":7,"subnet":"10.213.1.0/24","instances":[
				{"id":"i-1","generation":2,"machine":"c-i-1-2","desired":"RUNNING","ended":true,"cpuLimit":25,"memLimitMb":128,"env":{"A":"b"},"command":["x"]}]}}}`,
			"ReportInstances": `{"data":{"reportInstances":{"remove":["c-i-9-1"],"revision":9}}}`,
			"RegisterNode":    `{"data":{"registerNode":{"node":{"id":"a","uid":"n-1"},"server":{"epoch":"e","heartbeatInterval":"10s"},"remove":[]}}}`,
		}
		server := &scripted{t: t, answer: func(_ int, r request) (int, string) { return 200, answers[r.OperationName] }}
		api := serve(t, server, client.Options{})
		beat, err := api.Heartbeat(t.Context(), muster.HeartbeatInput{UID: "n-1", Incarnation: 1})
		if diff := cmp.Diff(&muster.Beat{NextBeatIn: 10 * time.Second, Epoch: "e", DesiredRevision: 7, ReportSequence: 3, Peers: "p"}, beat); diff != "" || err != nil {
			t.Error(diff, err)
		}
		peers, err := api.Peers(t.Context(), "n-1", 1)
		wantPeers := &muster.Peers{
			Tag: "p", Network: "10.213.0.0/16", Subnet: "10.213.1.0/24",
			Nodes: []*muster.Peer{{ID: "b", Addr: "192.0.2.8", Subnet: "10.213.2.0/24"}},
		}
		if diff := cmp.Diff(wantPeers, peers); diff != "" || err != nil {
			t.Error(diff, err)
		}
		wanted, err := api.Assignments(t.Context(), "n-1", 1)
		want := &muster.Assignments{Epoch: "e", DesiredRevision: 7, Subnet: "10.213.1.0/24", Instances: []*muster.Assignment{{
			ID: "i-1", Generation: 2, Machine: "c-i-1-2", Desired: muster.WantRunning, Ended: true,
			CPULimit: 25, MemLimitMB: 128, Env: muster.Map{"A": "b"}, Command: []string{"x"},
		}}}
		if diff := cmp.Diff(want, wanted); diff != "" || err != nil {
			t.Error(diff, err)
		}
		remove, err := api.ReportInstances(t.Context(), muster.ReportInstancesInput{UID: "n-1"})
		if diff := cmp.Diff([]string{"c-i-9-1"}, remove); diff != "" || err != nil {
			t.Error(diff, err)
		}
		registered, err := api.RegisterNode(t.Context(), muster.RegisterNodeInput{ID: "a"})
		if err != nil || registered.Node.UID != "n-1" || registered.Server.HeartbeatInterval != 10*time.Second {
			t.Errorf("%+v, %v", registered, err)
		}
		input, _ := server.asked[3].Variables["input"].(map[string]any)
		if list, ok := input["instances"].([]any); !ok || len(list) != 0 {
			t.Errorf("an empty inventory went out as %v", input["instances"])
		}
	})
}

func TestNew_RefusesWhatIsNoServer(t *testing.T) {
	for _, address := range []string{"127.0.0.1:9000", "ftp://host", "http://", "http://host:port:", "\x00"} {
		if _, err := client.New(client.Options{URL: address}); muster.CodeOf(err) != muster.Invalid {
			t.Errorf("%q: got %v, want INVALID", address, err)
		}
	}
	for address, want := range map[string]string{"": "http://127.0.0.1:9000/graphql", "https://h/x": "https://h/x", "http://h/": "http://h/graphql"} {
		c, err := client.New(client.Options{URL: address})
		if err != nil || c.URL() != want {
			t.Errorf("%q: %v, %v, want %s", address, c, err, want)
		}
	}
}
