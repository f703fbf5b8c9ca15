package deptest_test

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/validator/rules"
)

var (
	link    = regexp.MustCompile(`\[[^\]\n]*\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
	fence   = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```")
	target  = regexp.MustCompile("`make ([a-z]+)`")
)

func eachPage(t *testing.T, visit func(path, text string)) {
	t.Helper()
	count := 0
	eachFile(t, func(path string, data []byte) {
		if strings.HasSuffix(path, ".md") {
			count++
			visit(path, string(data))
		}
	})
	if count < 5 {
		t.Fatalf("only %d pages were found", count)
	}
}

func TestDocs_LinksLeadSomewhere(t *testing.T) {
	eachPage(t, func(path, text string) {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			to, err := url.Parse(m[1])
			if err != nil || to.Scheme != "" {
				continue
			}
			file := filepath.Join(root, filepath.Dir(path), to.Path)
			if to.Path == "" {
				file = filepath.Join(root, path)
			}
			data, err := os.ReadFile(file)
			if info, statErr := os.Stat(file); statErr == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s links to %s, which is not there", path, m[1])
				continue
			}
			if to.Fragment != "" && !hasHeading(string(data), to.Fragment) {
				t.Errorf("%s links to %s, but there is no such heading", path, m[1])
			}
		}
	})
}

// hasHeading tells whether a page has the heading that a fragment names.
func hasHeading(text, fragment string) bool {
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		words := strings.Map(func(r rune) rune {
			switch {
			case r == ' ' || r == '-':
				return '-'
			case r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_':
				return r
			default:
				return -1
			}
		}, strings.ToLower(h[1]))
		if words == fragment {
			return true
		}
	}
	return false
}

func TestDocs_MakeTargetsExist(t *testing.T) {
	makefile, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	eachPage(t, func(path, text string) {
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+": ##") {
				t.Errorf("%s speaks of `make %s`, which does not exist", path, m[1])
			}
		}
	})
}

// Every GraphQL text that a reader might copy is valid: the examples, the
// console's tabs and the fenced blocks of the pages.
func TestExamples_FitTheSchema(t *testing.T) {
	schema := loadSchema(t)
	valid := func(where, text string) {
		if _, errs := gqlparser.LoadQueryWithRules(schema, text, rules.NewDefaultRules()); len(errs) > 0 {
			t.Errorf("%s: %v", where, errs)
		}
	}
	files, blocks := 0, 0
	eachFile(t, func(path string, data []byte) {
		if strings.HasSuffix(path, ".graphql") {
			files++
			valid(path, string(data))
		}
	})
	eachPage(t, func(path, text string) {
		for _, m := range fence.FindAllStringSubmatch(text, -1) {
			if m[1] == "graphql" {
				blocks++
				valid(path, m[2])
			}
		}
	})
	if files < 5 || blocks < 3 {
		t.Errorf("found only %d files and %d blocks of GraphQL", files, blocks)
	}
}

// What an example shows as variables must be what its operation takes.
func TestExamples_HaveOperations(t *testing.T) {
	schema := loadSchema(t)
	examples, err := filepath.Glob(root + "/examples/*.graphql")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range examples {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		document, errs := gqlparser.LoadQueryWithRules(schema, string(text), rules.NewDefaultRules())
		if len(errs) > 0 {
			t.Error(errs)
			continue
		}
		if !strings.HasPrefix(string(text), "#") {
			t.Errorf("%s does not begin with a comment that says what it shows", filepath.Base(path))
		}
		for _, operation := range document.Operations {
			if operation.Name == "" || operation.Operation == ast.Operation("") {
				t.Errorf("%s has an operation without a name", filepath.Base(path))
			}
		}
	}
}

// TestDocs_TwoCommandsAreEnough: whoever comes for the first time runs one command, and to see that all of it works, another.
func TestDocs_TwoCommandsAreEnough(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	first := fence.FindSubmatch(readme)
	if first == nil {
		t.Fatal("the README has no command")
	}
	var commands []string
	for line := range strings.Lines(string(first[2])) {
		command, _, _ := strings.Cut(line, "#")
		commands = append(commands, strings.TrimSpace(command))
	}
	if want := []string{"make run", "make test"}; !slices.Equal(commands, want) {
		t.Errorf("the README begins with %q, want %q", commands, want)
	}
	for _, c := range commands {
		if name := strings.TrimPrefix(c, "make "); !strings.Contains(string(makefile), "\n"+name+":") {
			t.Errorf("the Makefile has no %s", name)
		}
	}
}
