package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// someKey is the text of a key that no server knows: its secret is 256 zeros.
const someKey = "muster_k-1_000000000000000000000000000000000000000000036ztfM"

// against runs one command line against a server that answers every call with the
// same body.
func against(t *testing.T, answer any, args ...string) (code int, out, said string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	return run(map[string]string{"MUSTER_SERVER": s.URL, "MUSTER_TIMEOUT": "5s", "MUSTER_KEY": someKey}, args...)
}

// run runs one command line in an environment of its own.
func run(env map[string]string, args ...string) (code int, out, said string) {
	var stdout, stderr bytes.Buffer
	code = cli.Main(context.Background(), args, cli.Std{
		Program: "muster", In: strings.NewReader(""), Out: &stdout, Err: &stderr,
		LookupEnv: func(name string) (string, bool) { value, ok := env[name]; return value, ok },
	})
	return code, stdout.String(), stderr.String()
}

func refusal(e muster.Error) any {
	extensions := map[string]any{"code": e.Code}
	for key, value := range e.Details {
		extensions[key] = value
	}
	return map[string]any{"errors": []any{map[string]any{"message": e.Message, "extensions": extensions}}}
}

func TestMain_EndsWithTheCodeOfTheError(t *testing.T) {
	want := map[muster.Code]int{
		muster.Invalid: 2, muster.Unauthenticated: 1, muster.Forbidden: 1, muster.NotFound: 3, muster.UnknownNode: 3,
		muster.AlreadyExists: 4, muster.DuplicateIdentity: 4, muster.Superseded: 4, muster.Conflict: 4,
		muster.NoCapacity: 5, muster.Limit: 1, muster.Unavailable: 6, muster.Compacted: 1, muster.Internal: 1,
	}
	for _, code := range muster.Codes() {
		t.Run(string(code), func(t *testing.T) {
			got, out, said := against(t, refusal(muster.Error{Code: code, Message: "no; do that"}), "instance", "terminate", "i-1")
			if number, ok := want[code]; !ok || got != number {
				t.Errorf("the exit code is %d, want %d", got, number)
			}
			wanted := "muster: no; do that\n"
			if code == muster.Unauthenticated {
				wanted = "muster: no; do that (the key is from MUSTER_KEY)\n"
			}
			if out != "" || said != wanted {
				t.Errorf("it printed %q and said %q", out, said)
			}
		})
	}
}

func TestMain_GivesEachNodesReason(t *testing.T) {
	answer := refusal(muster.Error{
		Code: muster.NoCapacity, Message: "no node fits; add one",
		Details: map[string]any{"nodes": []any{
			map[string]any{"node": "n1", "reason": "it is cordoned"},
			map[string]any{"node": "n2", "reason": "0 MiB free,\n128 needed"},
		}},
	})
	code, _, said := against(t, answer, "instance", "launch", "--type", "nano")
	if code != 5 || said != "muster: no node fits; add one\n  n1: it is cordoned\n  n2: 0 MiB free,·128 needed\n" {
		t.Errorf("it ended with %d and said %q", code, said)
	}
}

func TestMain_PrintsNothingThatMovesTheCursor(t *testing.T) {
	evil := "\x1b[2J\x07\r\u009bx"
	node := map[string]any{"id": evil, "uid": evil, "statusReason": evil, "labels": map[string]string{evil: evil}, "images": []string{evil}, "status": "HEALTHY"}
	edges := []any{map[string]any{"cursor": "", "node": node}}
	for _, test := range []struct {
		name   string
		answer any
		args   []string
	}{
		{"list", map[string]any{"data": map[string]any{"nodes": map[string]any{"edges": edges}}}, []string{"node", "list"}},
		{"show", map[string]any{"data": map[string]any{"node": node}}, []string{"node", "show", "n1"}},
		{"error", refusal(muster.Error{Code: muster.Conflict, Message: evil}), []string{"node", "remove", "n1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, out, said := against(t, test.answer, test.args...)
			text := out + said
			if !strings.Contains(text, "[2J") {
				t.Fatalf("it left the text out: %q", text)
			}
			if strings.ContainsAny(text, "\x1b\x07\r\u009b") {
				t.Errorf("it printed %q", text)
			}
		})
	}
}

func TestMain_ReadsSettingsFromItsEnvironmentOnly(t *testing.T) {
	t.Setenv("MUSTER_OUTPUT", "json") // of the process: not what Std says
	if _, out, _ := run(nil, "version"); !strings.HasPrefix(out, "muster ") {
		t.Errorf("the process's environment was read: %q", out)
	}
	if _, out, _ := run(map[string]string{"MUSTER_OUTPUT": "json"}, "version"); !strings.HasPrefix(out, "{") {
		t.Errorf("the environment was not read: %q", out)
	}
	if code, _, said := run(map[string]string{"MUSTER_OUTPUT": ""}, "version"); code != 0 {
		t.Errorf("an empty variable counts: %q", said)
	}
}

func TestMain_CutsWhatItRepeats(t *testing.T) {
	long := strings.Repeat("é", 1000)
	code, _, said := run(map[string]string{"MUSTER_TIMEOUT": long}, "node", "list")
	if code != 2 || len([]rune(said)) > 200 || !strings.HasPrefix(said, "muster: MUSTER_TIMEOUT: ") {
		t.Errorf("it ended with %d and said %q", code, said)
	}
}

func FuzzMain_Filter(f *testing.F) {
	for _, seed := range []string{"status=HEALTHY", "label.a=b,role=service", "label.=", "=", ",", "schedulable=TRUE,status=x", `"a,b"=c`, "label.a=\x1b[2J", "label.a=1,label.a=2"} {
		f.Add(seed)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"data": {"nodes": {"edges": []}}}`))
	}))
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, filter string) {
		code, out, said := run(map[string]string{"MUSTER_SERVER": s.URL}, "node", "list", "--filter="+filter)
		switch code {
		case 0:
			if said != "" || !strings.HasPrefix(out, "ID ") {
				t.Errorf("it said %q and printed %q", said, out)
			}
		case 2:
			if out != "" || strings.Count(said, "\n") != 1 || len(said) > 2000 {
				t.Errorf("it printed %q and said %q", out, said)
			}
		default:
			t.Errorf("it ended with %d and said %q", code, said)
		}
	})
}
