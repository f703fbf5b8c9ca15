package audit_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestAudit_GraphQLOverHTTP(t *testing.T) {
	dir, s := installed(t), serve(t)
	if out := run(t, dir, "node", "audit.mjs", s.http); out != "61 of 61\n" {
		t.Error(out)
	}
}

func TestAudit_GraphQLWS(t *testing.T) {
	dir, s := installed(t), serve(t)
	want := `query [{"serverInfo":{"revision":10}}]
error INVALID
refused NOT_FOUND
watched 2,3,4,5,6,7,8,9,10
pong
`
	first := s.change(10)
	if out := run(t, dir, "node", "watch.mjs", s.ws, first); out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

// The codes that are not here cannot be brought about: 4403 needs keys, 4500 is
// never sent, 1001 and 1006 are in the next test.
func TestAudit_GraphQLWS_AfterEachCloseCode(t *testing.T) {
	dir := installed(t)
	for _, tc := range []struct {
		name  string
		args  []string
		codes []string
		want  string
	}{
		{"usual limits", nil, []string{"4400", "4401", "4406", "4408", "4409", "4429", "1009"}, `4400 closed with 4400 final
4401 closed with 4401 final
4406 closed with 4406 final
4408 closed with 4408 goes on
4409 closed with 4409 final
4429 closed with 4429 final
1009 closed with 1009 final
`},
		{"one WebSocket a caller", []string{"--max-websockets-each", "1"}, []string{"1013"}, "1013 closed with 1013 goes on\n"},
		{"one WebSocket in all", []string{"--max-websockets", "1"}, []string{"503"}, "503 closed with 1006 goes on\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, tc.args...)
			if out := run(t, dir, "node", append([]string{"close.mjs", s.ws}, tc.codes...)...); out != tc.want {
				t.Errorf("got\n%swant\n%s", out, tc.want)
			}
		})
	}
}

// TestAudit_GraphQLWS_OverRestarts stops the server and kills it while a client
// watches, who goes on where it was each time.
func TestAudit_GraphQLWS_OverRestarts(t *testing.T) {
	dir, s := installed(t), serve(t)
	first := s.change(2)
	script := exec.CommandContext(t.Context(), "node", "restart.mjs", s.ws, first)
	script.Dir = dir
	script.Stderr = os.Stderr
	out, err := script.StdoutPipe()
	if err == nil {
		err = script.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = script.Process.Kill()
		_ = script.Wait()
	}()
	lines := bufio.NewReader(out)
	expect := func(want ...string) {
		t.Helper()
		for _, line := range want {
			if got, err := lines.ReadString('\n'); strings.TrimSpace(got) != line {
				rest, _ := io.ReadAll(io.LimitReader(lines, int64(lines.Buffered())))
				t.Fatalf("got %q, %v, want %s; then\n%s", got, err, line, rest)
			}
		}
	}
	expect("CHANGE 2", "SYNCED 2")
	for n, restart := range []struct {
		how   os.Signal
		close string
	}{{os.Interrupt, "closed 1001"}, {os.Kill, "closed 1006"}, {os.Interrupt, "closed 1001"}} {
		revision := int64(n + 3)
		s.end(restart.how)
		expect(restart.close)
		s.start()
		expect(fmt.Sprintf("SYNCED %d", revision-1))
		s.change(revision)
		expect(fmt.Sprintf("CHANGE %d", revision))
	}
}

// installed copies the scripts to a folder of the test and installs what their
// lock file names.
func installed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	return dir
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
