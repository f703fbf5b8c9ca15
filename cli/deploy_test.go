package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster/cli"
)

// sent runs one command line against a server that answers nothing useful, and returns the
// input that it was sent.
func sent(t *testing.T, env map[string]string, stdin string, args ...string) (input map[string]any, said string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Variables struct{ Input map[string]any }
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		input = body.Variables.Input
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"errors": [{"message": "it was sent", "extensions": {"code": "CONFLICT"}}]}`))
	}))
	defer s.Close()
	all := map[string]string{"MUSTER_SERVER": s.URL, "MUSTER_KEY": someKey}
	for k, v := range env {
		all[k] = v
	}
	var stdout, stderr strings.Builder
	code := cli.Main(t.Context(), args, cli.Std{
		Program: "muster", In: strings.NewReader(stdin), Out: &stdout, Err: &stderr,
		LookupEnv: func(name string) (string, bool) { v, ok := all[name]; return v, ok },
	})
	if input != nil && code != 4 || input == nil && code != 2 {
		t.Errorf("it ended with %d: %s", code, stderr.String())
	}
	delete(input, "requestId")
	return input, stderr.String()
}

func TestDeploy_SendsWhatTheFlagsSay(t *testing.T) {
	type m = map[string]any
	for name, c := range map[string]struct {
		args  string // separated by |
		env   map[string]string
		stdin string
		want  string // JSON
	}{
		"an instance that is launched": {
			args: "web|--type|nano|--image|debian|--node|n1|--selector|zone=a|--queue|--|httpd|-f",
			want: `{"name": "web", "type": "NANO", "image": "debian", "nodeId": "n1", "nodeSelector": {"zone": "a"}, "queue": true, "command": ["httpd", "-f"]}`,
		},
		"files, and how they run": {
			args: "web|--instance|i-1|--url|file:///srv/web.tar|--sha256|" + strings.Repeat("ab", 32) + "|--user|nobody:www|--dir|/srv|--port|80|--publish|any|--stable-for|5s",
			want: `{"name": "web", "instanceId": "i-1", "deployUrl": "file:///srv/web.tar", "sha256": "` + strings.Repeat("ab", 32) + `", "user": "nobody:www", "dir": "/srv", "port": 80, "publish": {"port": 0, "protocol": "TCP"}, "stableFor": "5s"}`,
		},
		"a port of its own for UDP": {
			args: "dns|--instance|i-1|--port|53|--publish|30053/udp|--|dns",
			want: `{"name": "dns", "instanceId": "i-1", "port": 53, "publish": {"port": 30053, "protocol": "UDP"}, "command": ["dns"]}`,
		},
		"any port for UDP": {
			args: "dns|--instance|i-1|--port|53|--publish|any/UDP|--|dns",
			want: `{"name": "dns", "instanceId": "i-1", "port": 53, "publish": {"port": 0, "protocol": "UDP"}, "command": ["dns"]}`,
		},
		"a policy": {
			args: "web|--instance|i-1|--restart|on-failure|--restart-attempts|-1|--restart-window|1m|--|x",
			want: `{"name": "web", "instanceId": "i-1", "restart": {"when": "ON_FAILURE", "attempts": -1, "window": "1m0s"}, "command": ["x"]}`,
		},
		"checks": {
			args: `web|--instance|i-1|--port|80|--check|kind=http path=/healthz interval=5s,tls, skip-verify=true body="all, well" status=200|--check|name=disk,kind=EXEC,command="check_disk -w '10 %' /",initialDelay=3s,fail-after=3,passAfter=2,tries=2,pause=1s,timeout=2s|--check|kind=ttl|--check|name=port,kind=tcp,port=81|--|x`,
			want: `{"name": "web", "instanceId": "i-1", "port": 80, "command": ["x"], "checks": [
				{"name": "http", "kind": "HTTP", "path": "/healthz", "interval": "5s", "tls": true, "skipVerify": true, "body": "all, well", "status": 200},
				{"name": "disk", "kind": "EXEC", "command": ["check_disk", "-w", "10 %", "/"], "initialDelay": "3s", "failAfter": 3, "passAfter": 2, "tries": 2, "pause": "1s", "timeout": "2s"},
				{"name": "ttl", "kind": "TTL"},
				{"name": "port", "kind": "TCP", "port": 81}]}`,
		},
		"entries": {
			args: `web|--instance|i-1|--port|80|--register|cluster=main,protocol=http,priority=10,ttl=30s,annotation.zone=a,annotation.note="x, y"|--register|cluster=main protocol=tcp service=web-tcp address=192.0.2.1 port=8080 ttl=never|--|x`,
			want: `{"name": "web", "instanceId": "i-1", "port": 80, "command": ["x"], "registerWhenStable": [
				{"cluster": "main", "protocol": "http", "priority": 10, "ttl": "30s", "annotations": {"zone": "a", "note": "x, y"}},
				{"cluster": "main", "protocol": "tcp", "service": "web-tcp", "address": "192.0.2.1", "port": 8080, "ttl": "-1ns"}]}`,
		},
		"an environment": {
			args: "web|--instance|i-1|--env-file|ENVFILE|-e|A=1,2|--env|SECRET|--|x", env: map[string]string{"SECRET": "of mine", "FROM_FILE": "of mine too"},
			want: `{"name": "web", "instanceId": "i-1", "command": ["x"], "env": {"A": "1,2", "SECRET": "of mine", "FROM_FILE": "of mine too", "B": " as it = is \"", "EMPTY": ""}}`,
		},
		"a file, and flags that count more": {
			args: "-f|-|--port|81|--check|kind=tcp|-e|A=3|other|--restart|always",
			stdin: `
name: web
type: micro
user: 0100
dir: "/srv"
command: [./web, -v, 1.50, "x y", 'z']
deployUrl: https://example.org/web.tar
port: 80
publish: {port: 30080}
stableFor: 1m
env: {A: 1, B: 1.50, C: "x", D: yes, E: 007}
checks:
- {name: web, kind: http, path: /healthz, interval: 5s}
restart: {when: on-failure, backoff: 2s}
registerWhenStable:
- cluster: main
  protocol: http
  ttl: 30s
  annotations: {version: 1.10}
`,
			want: `{"name": "other", "type": "MICRO", "user": "0100", "dir": "/srv", "command": ["./web", "-v", "1.50", "x y", "z"], "deployUrl": "https://example.org/web.tar", "port": 81, "publish": {"port": 30080, "protocol": "TCP"}, "stableFor": "1m0s",
				"env": {"A": "3", "B": "1.50", "C": "x", "D": "yes", "E": "007"},
				"checks": [{"name": "web", "kind": "HTTP", "path": "/healthz", "interval": "5s"}, {"name": "tcp", "kind": "TCP"}],
				"restart": {"when": "ALWAYS", "backoff": "2s"},
				"registerWhenStable": [{"cluster": "main", "protocol": "http", "ttl": "30s", "annotations": {"version": "1.10"}}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "env")
			if err := os.WriteFile(file, []byte("# of mine\n\nA=0\r\nB= as it = is \"\nFROM_FILE\nEMPTY=\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"service", "deploy"}, strings.Split(strings.ReplaceAll(c.args, "ENVFILE", file), "|")...)
			got, said := sent(t, c.env, c.stdin, args...)
			var want m
			if err := json.Unmarshal([]byte(c.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("it said %q and sent (-want +got):\n%s", said, diff)
			}
		})
	}
}

func TestServiceRegister_SendsWhatTheFlagsSay(t *testing.T) {
	got, said := sent(t, nil, "", "service", "register", "db", "--instance", "i-1", "--port", "5432", "--check", "kind=tcp,interval=5s", "--register", "cluster=main,protocol=pg")
	want := map[string]any{
		"name": "db", "instanceId": "i-1", "port": 5432.0,
		"checks":             []any{map[string]any{"name": "tcp", "kind": "TCP", "interval": "5s"}},
		"registerWhenStable": []any{map[string]any{"cluster": "main", "protocol": "pg"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("it said %q and sent (-want +got):\n%s", said, diff)
	}
}

func TestDeploy_RefusesWhatCannotBe(t *testing.T) {
	const on = "web|--instance|i-1|"
	for name, c := range map[string]struct{ args, stdin, want string }{
		"nowhere":                      {"web|--|x", "", "neither --instance nor --type is there; name the instance that it is in, or the type of one to launch for it"},
		"in two places":                {"web|--instance|i-1|--type|nano|--|x", "", "--type, --image, --node, --selector and --queue launch an instance; leave them out to deploy into i-1"},
		"no name":                      {"--instance|i-1|--|x", "", "NAME: it is empty"},
		"a long name":                  {strings.Repeat("x", 300) + "|--instance|i-1|--|x", "", "NAME: it has 300 bytes, at most 63 are allowed"},
		"nothing to run":               {"web|--instance|i-1", "", "COMMAND: there is neither a command nor a --url; say what to run"},
		"a command without --":         {"web|httpd|--instance|i-1", "", `"httpd" is neither a flag nor the name, which is "web"; the command to run comes after --`},
		"no size":                      {"web|--type|huge|--|x", "", `--type: "HUGE" is no instance type; use NANO, MICRO, SMALL, MEDIUM or LARGE`},
		"a checksum of nothing":        {on + "--sha256|aa|--|x", "", "--sha256: it is the checksum of what --url names; give that too"},
		"no checksum":                  {on + "--url|http://h/x|--sha256|aa", "", "--sha256: \"aa\" is no SHA-256 checksum; give 64 hex digits, as sha256sum prints them"},
		"no URL":                       {on + "--url|ftp://h/x", "", `--url: "ftp://h/x" is neither http, https nor file`},
		"a password in the URL":        {on + "--url|http://u:p@h/x", "", "--url: it has a password in it"},
		"no port":                      {on + "--port|99999|--|x", "", "--port: 99999 is not between 1 and 65535"},
		"published without a port":     {on + "--publish|any|--|x", "", "--publish: there is no port to lead to; give the service's own as --port"},
		"no port to publish":           {on + "--port|80|--publish|web|--|x", "", `--publish "web": "web" is no port; give 1 to 65535, or any for one that is free`},
		"no protocol":                  {on + "--port|80|--publish|80/icmp|--|x", "", `--publish "80/icmp": "icmp" is no protocol; use tcp or udp`},
		"no check":                     {on + "--check||--|x", "", "--check is empty; give KEY=VALUE, with these keys: kind, name, command"},
		"a check of no kind":           {on + "--check|path=/x|--|x", "", `--check "path=/x": kind is missing; add kind=http, kind=tcp, kind=exec or kind=ttl`},
		"a check of a kind that isn't": {on + "--check|kind=icmp|--|x", "", `--check "kind=icmp": kind: "icmp" is none; use http, tcp, exec or ttl`},
		"a check with another key":     {on + "--check|kind=tcp port=1 speed=3|--|x", "", `there is no key "speed"; use kind, name,`},
		"a check with a key twice":     {on + "--check|kind=tcp port=1 port=2|--|x", "", "port is there twice; give one of them"},
		"a check every 0 s":            {on + "--check|kind=tcp port=1 interval=0|--|x", "", `interval: "0" is no time above 0s; write one such as 5s or 1m30s`},
		"a check too often":            {on + "--check|kind=tcp port=1 interval=10ms|--|x", "", "--check interval: 10ms is not between 1s and 24h0m0s"},
		"a check with an open quote":   {on + `--check|kind=exec command="x|--|x`, "", "a quote \" is not closed; close it"},
		"a check without a value":      {on + "--check|kind=http path|--|x", "", "path: the value is missing"},
		"a check without a port":       {on + "--check|kind=tcp|--|x", "", "--check port: neither the check tcp nor its service has a port; give one of them one"},
		"two checks of a name":         {on + "--port|1|--check|kind=tcp|--check|kind=tcp|--|x", "", "--check name: two checks are called tcp; give each its own name"},
		"an entry without a cluster":   {on + "--register|protocol=http|--|x", "", "cluster and protocol have to be there; write such as cluster=main,protocol=http"},
		"an entry of a bad name":       {on + "--register|cluster=9,protocol=http|--|x", "", "--register cluster: \"9\" is no name for the discovery feed"},
		"a policy that isn't":          {on + "--restart|sometimes|--|x", "", `--restart "sometimes" is none; use always, on-failure or never`},
		"no attempts":                  {on + "--restart-attempts|0|--|x", "", "--restart-attempts 0 is none; use --restart never for no restart, or -1 for no limit"},
		"a window of nothing":          {on + "--restart-window|0s|--|x", "", "--restart-window 0s is no time above 0s; write one such as 10m"},
		"a variable of nobody's":       {on + "-e|NOBODY|--|x", "", `--env "NOBODY": there is no variable NOBODY in my environment to take the value from; set it, or give KEY=VALUE`},
		"a variable without a name":    {on + "-e|=secret|--|x", "", `--env "": it is not KEY=VALUE`},
		"a variable with NUL":          {"-f|-", "name: web\ntype: nano\ncommand: [x]\nenv: {A: \"x\\0y\"}\n", "env"},
		"a file that isn't there":      {on + "--env-file|/nowhere|--|x", "", "--env-file: open /nowhere: no such file or directory"},
		"no file":                      {"-f|/nowhere", "", "--file: open /nowhere: no such file or directory"},
		"an empty file":                {"-f|-", "", "--file - is empty; write such as name: web"},
		"an unknown key":               {"-f|-", "name: web\nprot: 80\n", `--file -: line 2: unknown field "prot"; the names are those of DeployServiceInput in the schema`},
		"an unknown key of a check":    {"-f|-", "checks:\n- {name: web, intrval: 5s}\n", `line 2: unknown field "intrval"`},
		"a key twice":                  {"-f|-", "name: web\nname: x\n", `line 2: mapping key "name" already defined`},
		"a number that is none":        {"-f|-", "port: eighty\n", "line 1: port has to be a whole number"},
		"a time without a unit":        {"-f|-", "stableFor: 30\n", "line 1: stableFor has to be a time such as 30s"},
		"a time that is none":          {"-f|-", "stableFor: soon\n", `invalid duration "soon"`},
		"two documents":                {"-f|-", "name: a\n---\nname: b\n", "has more than one document; give one service a file"},
		"an interval of 0":             {"-f|-", "checks:\n- {name: a, kind: ttl, interval: 0s}\n", `checks.interval: "0s" is no time above 0s; leave it out for the default`},
		"a list for a map":             {"-f|-", "env: [a, b]\n", "it has to be KEY: VALUE, a line each"},
		"a variable without a value":   {"-f|-", "env: {A: }\n", `the value of "A" is missing; write "" for an empty one`},
		"an alias":                     {"-f|-", "env: &a {A: *a}\n", "line 1: anchors and aliases are not read here; write it out"},
		"a map for a text":             {"-f|-", "name: {a: b}\n", "is no text; quote it"},
		"no YAML":                      {"-f|-", "a: [", "--file -: "},
		"a file of nothing to run":     {"-f|-", "name: web\ntype: nano\n", "command: there is neither a command nor a deployUrl; say what to run"},
	} {
		t.Run(name, func(t *testing.T) {
			input, said := sent(t, nil, c.stdin, append([]string{"service", "deploy"}, strings.Split(c.args, "|")...)...)
			if input != nil || !strings.HasPrefix(said, "muster: ") || !strings.Contains(said, c.want) || strings.Count(said, "\n") != 1 {
				t.Errorf("it sent %v and said %q, want %q", input, said, c.want)
			}
			if strings.Contains(said, "secret") {
				t.Errorf("it repeats a value: %q", said)
			}
		})
	}
}

// anyServer takes everything and answers nothing.
func anyServer(f *testing.F) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"errors": [{"message": "it was sent", "extensions": {"code": "CONFLICT"}}]}`))
	}))
	f.Cleanup(s.Close)
	return s.URL
}

// sentOrRefused wants a command line to be refused with one line, or to reach the server.
func sentOrRefused(t *testing.T, url, stdin string, args ...string) {
	t.Helper()
	var said strings.Builder
	code := cli.Main(t.Context(), args, cli.Std{
		Program: "muster", In: strings.NewReader(stdin), Out: io.Discard, Err: &said,
		LookupEnv: func(name string) (string, bool) {
			v, ok := map[string]string{"MUSTER_SERVER": url, "MUSTER_KEY": someKey}[name]
			return v, ok
		},
	})
	if code != 2 && code != 4 || strings.Count(said.String(), "\n") != 1 || len(said.String()) > 2000 {
		t.Errorf("it ended with %d and said %q", code, said.String())
	}
}

func FuzzDeploy_Clauses(f *testing.F) {
	for _, seed := range []string{
		"kind=http path=/healthz interval=5s", `kind=exec,command="a 'b c' \\d"`, "kind", "kind=", "=", ",", "'", `"`, `\`, "tls tls", "kind=ttl\x00", "cluster=a,protocol=b,annotation.x=y",
		"annotation.=", "ttl=never cluster=a protocol=b", "kind=tcp port=99999999999999999999",
	} {
		f.Add(seed)
	}
	url := anyServer(f)
	f.Fuzz(func(t *testing.T, text string) {
		sentOrRefused(t, url, "", "service", "deploy", "web", "--instance=i-1", "--port=80", "--check="+text, "--", "x")
		sentOrRefused(t, url, "", "service", "deploy", "web", "--instance=i-1", "--port=80", "--register="+text, "--", "x")
	})
}

func FuzzDeploy_File(f *testing.F) {
	for _, seed := range []string{
		"name: web\ntype: nano\ncommand: [x]\n", "env: {A: 1, B: |\n  x\n}", "env:\n  A: |\n    x\n", "env: &a {A: *a}", "checks: [{kind: http}]", "- a", "a: b: c", "publish:\n", "restart: {when: x}",
		"env: {? [a]: b}", "env: {<<: {A: b}}", "name: !!binary aGk=\n", "{", "\t", "---\n---\n", "name: \"\\x00\"",
	} {
		f.Add(seed)
	}
	url := anyServer(f)
	f.Fuzz(func(t *testing.T, text string) {
		sentOrRefused(t, url, text, "service", "deploy", "--file=-")
	})
}
