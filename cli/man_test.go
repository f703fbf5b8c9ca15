package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The page names every command and what the exit codes mean, so that it is where
// to look.
func TestDocs_NameEveryCommandAndExitCode(t *testing.T) {
	dir := t.TempDir()
	if code, _, said := run(nil, "man", dir); code != 0 {
		t.Fatalf("it ended with %d and said %q", code, said)
	}
	page, err := os.ReadFile("../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(files) < 30 {
		t.Fatalf("there are %d manual pages: %v", len(files), err)
	}
	synopsis := regexp.MustCompile(`(?m)^\.SH "SYNOPSIS"\n\.B (muster(?: [a-z][a-z-]*)*)( COMMAND)?`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := synopsis.FindStringSubmatch(strings.ReplaceAll(string(text), `\-`, "-"))
		switch {
		case found == nil:
			t.Errorf("%s has no synopsis", filepath.Base(file))
		case found[2] == "" && !strings.Contains(string(page), "`"+found[1]+"`") && found[1] != "muster exit-codes":
			t.Errorf("docs/cli.md does not name `%s`", found[1])
		}
	}
	_, codes, _ := run(nil, "help", "exit-codes")
	for _, code := range regexp.MustCompile(`(?m)^ {2,}(\d+)  `).FindAllStringSubmatch(codes, -1) {
		if !strings.Contains(string(page), "\n| "+code[1]+" | ") {
			t.Errorf("docs/cli.md does not name the exit code %s", code[1])
		}
	}
	if strings.Count(codes, "\n") < 10 {
		t.Errorf("the exit codes are %q", codes)
	}
}
