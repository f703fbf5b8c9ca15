package agent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

func TestAgent_TakesNudgesOnly(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		id := w.cloud.launch()
		fetched := func() int { return len(w.cloud.times("Assignments")) }
		before := fetched()
		for name, c := range map[string]struct {
			body string
			want int
		}{
			"another incarnation": {`{"instance":"i-1","desiredRevision":2,"incarnation":2}`, 409},
			"an old incarnation":  {`{"instance":"i-1","desiredRevision":2}`, 409},
			"another instance":    {`{"instance":"i-2","desiredRevision":2,"incarnation":1}`, 400},
			"garbage":             {`garbage`, 400},
			"nothing":             {``, 400},
			"too much":            {`{"instance":"` + strings.Repeat("x", 5000) + `"}`, 413},
		} {
			if status := a.post(id, c.body); status != c.want {
				t.Errorf("%s: %d, want %d", name, status, c.want)
			}
		}
		if n := fetched(); n != before {
			t.Errorf("what is no nudge led to %d fetches", n-before)
		}
		for range 3 { // the second and third tell nothing new
			if status := a.nudge(id, 2, 1); status != 202 {
				t.Errorf("a nudge was answered with %d", status)
			}
		}
		if n := fetched(); n != before+1 {
			t.Errorf("three nudges of one revision led to %d fetches", n-before)
		}
	})
}

func TestAgent_SaysWhoItIs(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a, err := agent.New(agent.Options{Driver: drivertest.NewFake(w.host), Registry: w.cloud, StateDir: w.dir})
		if err != nil {
			t.Fatal(err)
		}
		get := func(a *agent.Agent, path string) (int, map[string]any) {
			rec := httptest.NewRecorder()
			a.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
			var body map[string]any
			if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
				t.Errorf("%s: %v: %s", path, err, rec.Body)
			}
			return rec.Code, body
		}
		if status, _ := get(a, "/identity"); status != 503 {
			t.Errorf("before it runs: %d", status)
		}
		running := w.start()
		status, body := get(running.Agent, "/identity")
		want := map[string]any{"uid": "n-1", "id": "node-a", "incarnation": 1.0}
		if diff := cmp.Diff(want, body); diff != "" || status != 200 {
			t.Error(status, diff)
		}
		if status, _ := get(running.Agent, "/healthz"); status != 200 {
			t.Errorf("healthz: %d", status)
		}
	})
}

func TestAgent_ServesItsPort(t *testing.T) {
	host := drivertest.NewHost()
	defer host.Close()
	c := newCloud()
	a, err := agent.New(agent.Options{Driver: drivertest.NewFake(host), Registry: c, StateDir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	r := begin(t, a)
	defer r.stop()
	var in muster.RegisterNodeInput
	eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.registered) == 0 {
			return false
		}
		in = c.registered[0]
		return true
	})
	hostname, _ := os.Hostname()
	if in.Addr != "127.0.0.1" || in.Port == 0 || in.CPUCount < 1 || in.MemoryMB < 1 || in.BootID == "" || in.Role != muster.Compute || string(in.ID) != hostname {
		t.Errorf("it registered as %+v", in)
	}
	url := fmt.Sprintf("http://%s:%d/healthz", in.Addr, in.Port)
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("%s answered %s", url, answer.Status)
	}
}
