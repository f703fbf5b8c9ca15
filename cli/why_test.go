package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// answers runs one command line against a server that answers each operation by its name.
func answers(t *testing.T, data map[string]string, args ...string) (code int, out, said string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			OperationName string
			Variables     map[string]any
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		answer, ok := data[body.OperationName+" "+fmt.Sprint(body.Variables["since"])]
		if !ok {
			answer, ok = data[body.OperationName]
		}
		if !ok {
			t.Errorf("it asked for %s %v", body.OperationName, body.Variables)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"data": %s}`, answer)
	}))
	defer s.Close()
	return run(map[string]string{"MUSTER_SERVER": s.URL, "MUSTER_KEY": someKey}, args...)
}

func change(cursor, status, reason string) string {
	return fmt.Sprintf(`{"cursor": %q, "node": {"kind": "SERVICE", "at": "2026-01-02T03:04:05Z", "status": %q, "reason": %q, "actor": "node a"}}`, cursor, status, reason)
}

func TestWhy_SaysWhereToLook(t *testing.T) {
	service := func(rest string) string {
		return `{"service": {"id": "svc-1", "name": "web", "instanceId": "i-7", "port": 80, "createdAt": "2026-01-02T03:04:05Z", ` + rest + `}}`
	}
	const failing = `"status": "RUNNING", "health": "UNHEALTHY", "checks": [{"name": "probe", "kind": "EXEC", "command": ["probe", "-x"]}],
		"checkResults": [{"name": "probe", "status": "CRITICAL", "at": "2026-01-02T03:04:05Z"}]`
	for name, c := range map[string]struct {
		service  string
		says     []string
		saysNone string
	}{
		"a check of its own":    {service(failing), []string{"muster logs svc-1\n", "muster exec svc-1 -- probe -x\n"}, "logs i-7"},
		"a check of what is":    {service(failing + `, "announced": true`), []string{"muster logs i-7\n", "muster exec svc-1 -- probe -x\n"}, "logs svc-1"},
		"a port of root's":      {service(`"status": "FAILED", "statusReason": "exited with status 1: bind: Permission denied"`), []string{"muster logs svc-1\n", "ports below 1024 are root's"}, "exec"},
		"no program to execute": {service(`"status": "FAILED", "statusReason": "could not start: execute \"./x\": permission denied"`), []string{"muster logs svc-1\n"}, "1024"},
	} {
		t.Run(name, func(t *testing.T) {
			_, out, said := answers(t, map[string]string{
				"ServiceByID": c.service, "InstanceByID": `{"instance": {"id": "i-7", "status": "RUNNING"}}`, "ListNewestChanges": `{"changes": {"edges": [], "pageInfo": {}}}`,
			}, "why", "svc-1")
			for _, want := range c.says {
				if !strings.Contains(out, want) {
					t.Errorf("it lacks %q", want)
				}
			}
			if strings.Contains(out, c.saysNone) || t.Failed() {
				t.Errorf("it said %q and printed\n%s", said, out)
			}
		})
	}
}

func TestWhy_SaysWhatTheLogHasOfWhatIsGone(t *testing.T) {
	first := strings.Join([]string{change("c1", "RUNNING", "reported"), change("c2", "FAILED", "exited with\nstatus 9")}, ", ")
	code, out, said := answers(t, map[string]string{
		"ServiceByID":       `{"service": null}`,
		"ListChanges <nil>": `{"changes": {"edges": [` + first + `], "pageInfo": {"hasNextPage": true}}}`,
		"ListChanges c2":    `{"changes": {"edges": [` + change("c3", "REMOVED", "remove was asked for") + `], "pageInfo": {}}}`,
	}, "why", "svc-1")
	for _, want := range []string{
		"svc-1 is gone since ", "  because REMOVED: remove was asked for, by node a\n", "  because FAILED before that: exited with\n          status 9\n",
		"its last changes, newest first:\n", "exited with·status 9\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it lacks %q", want)
		}
	}
	if code != 0 || said != "" || strings.Index(out, "REMOVED") > strings.Index(out, "RUNNING") {
		t.Errorf("it ended with %d, said %q and printed\n%s", code, said, out)
	}
	code, out, said = answers(t, map[string]string{
		"ServiceByID": `{"service": null}`, "ListChanges": `{"changes": {"edges": [], "pageInfo": {}}}`,
	}, "why", "svc-2")
	if code != 3 || out != "" || !strings.HasPrefix(said, `muster: there is no service "svc-2"`) {
		t.Errorf("of what never was: it ended with %d, printed %q and said %q", code, out, said)
	}
}

func TestWhy_Instances(t *testing.T) {
	for name, c := range map[string]struct {
		instance string
		want     []string
	}{
		"it failed": {
			`"status": "FAILED", "desired": "RUNNING", "statusReason": "its init ended", "exitCode": 9, "output": "1\n2\n3\n4\n5\nlast \u001b[2J\n"`,
			[]string{"instance i-1 (web) is FAILED on a\n", "because its init ended\n", "because its process ended with status 9\n", "because it wrote last:\n          2\n", "          last ·[2J\n", "do:     see all that it wrote: muster logs i-1\n", "do:     start it again: muster instance start i-1\n"},
		},
		"it was stopped": {`"status": "STOPPED", "desired": "STOPPED", "statusReason": "stop was asked for"`, []string{"because stop was asked for\n", "do:     start it: muster instance start i-1\n"}},
		"it is lost":     {`"status": "LOST", "statusReason": "its node was pruned"`, []string{"because its node was pruned\n", "do:     launch another one"}},
		"it is unknown":  {`"status": "UNKNOWN"`, []string{"do:     take it in: muster instance adopt i-1\n"}},
		"it runs":        {`"status": "RUNNING"`, []string{"because its process runs, and its node and its services are well\n"}},
		"its node is not well": {
			`"status": "RUNNING", "unhealthyBecause": {"reason": "its node a is UNHEALTHY: no beat for 31s"}`,
			[]string{"because its node a is UNHEALTHY: no beat for 31s\n", "do:     see about its node: muster why a\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, said := answers(t, map[string]string{
				"InstanceByID":      `{"instance": {"id": "i-1", "name": "web", "node": {"id": "a"}, ` + c.instance + `}}`,
				"ListServices":      `{"services": {"edges": [], "pageInfo": {}}}`,
				"ListNewestChanges": `{"instance": {"changes": []}}`,
			}, "why", "i-1")
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("it lacks %q", want)
				}
			}
			if code != 0 || said != "" || t.Failed() {
				t.Errorf("it ended with %d, said %q and printed\n%s", code, said, out)
			}
		})
	}
}
