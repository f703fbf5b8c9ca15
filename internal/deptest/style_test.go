package deptest_test

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The house aims lower (functions of 45 lines, files of 400); these are where
// a test says no.
const (
	maxFunction   = 80
	maxFile       = 500
	maxParameters = 5
)

// length is how many lines something has.
type length struct {
	what  string
	lines int
}

func TestStyle_Length(t *testing.T) {
	var functions []length
	eachFile(t, func(path string, data []byte) {
		if !isHandWritten(path, data) || strings.HasSuffix(path, "_test.go") {
			return
		}
		if lines := bytes.Count(data, []byte("\n")); lines > maxFile {
			t.Errorf("%s has %d lines: split it by noun (at most %d)", path, lines, maxFile)
		}
		functions = append(functions, functionLengths(t, path, data)...)
	})
	slices.SortFunc(functions, func(a, b length) int { return cmp.Compare(b.lines, a.lines) })
	long := 0
	for _, f := range functions {
		if f.lines > maxFunction {
			t.Errorf("%s has %d lines: at most %d", f.what, f.lines, maxFunction)
		}
		if f.lines > 45 {
			long++
		}
	}
	t.Logf("%d functions, %d of them over 45 lines; the longest: %v", len(functions), long, functions[:min(5, len(functions))])
}

func functionLengths(t *testing.T, path string, data []byte) []length {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, data, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return nil
	}
	var found []length
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			lines := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1
			found = append(found, length{path + ": " + f.Name.Name, lines})
		}
	}
	return found
}

// What no file may hold: a host that packages are downloaded from (each machine
// has its own), a place in somebody's home, an unresolved merge.
var forbidden = regexp.MustCompile(`(?i)registry\.(?:npmjs|yarnpkg)|(?:proxy|sum)\.golang\.|deb\.debian\.|https?://[^/\s]*(?:goproxy|artifactory|nexus|npm-?mirror)|/home/[a-z]|(?m:^<<<<<<< )`)

func TestTree_NamesNoPackageHostAndNoHome(t *testing.T) {
	for _, bad := range []string{"https://registry.npmjs-not/x", "https://goproxy.example.org", "/home/someone", "<<<<<<< HEAD"} {
		if !forbidden.MatchString(bad) {
			t.Fatalf("the pattern lets %q through", bad)
		}
	}
	eachFile(t, func(path string, data []byte) {
		if path == "internal/deptest/style_test.go" {
			return
		}
		if found := forbidden.Find(data); found != nil {
			t.Errorf("%s contains %q", path, found)
		}
	})
}

func TestStyle_TestsDoNotSkip(t *testing.T) {
	eachFile(t, func(path string, data []byte) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, data, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if ok && (call.Sel.Name == "Skip" || call.Sel.Name == "Skipf" || call.Sel.Name == "SkipNow") && isName(call.X, "t", "b", "f") {
				t.Errorf("%s: a test never skips itself: internal/build/packages.sh names what a machine can't run", files.Position(n.Pos()))
			}
			return true
		})
	})
}

func isName(e ast.Expr, names ...string) bool {
	id, ok := e.(*ast.Ident)
	return ok && slices.Contains(names, id.Name)
}

func TestStyle_PackagesHaveDocAndNoInit(t *testing.T) {
	documented := map[string]bool{}
	eachFile(t, func(path string, data []byte) {
		if !isHandWritten(path, data) || strings.HasSuffix(path, "_test.go") {
			return
		}
		dir := path[:strings.LastIndex("/"+path, "/")]
		file, err := parser.ParseFile(token.NewFileSet(), path, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		documented[dir] = documented[dir] || file.Doc != nil
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if f.Name.Name == "init" && f.Recv == nil {
				t.Errorf("%s has an init function: wiring is straight-line code", path)
			}
			if n := parameters(f); n > maxParameters && !strings.HasSuffix(path, ".resolvers.go") {
				t.Errorf("%s: %s takes %d parameters: at most %d, then a struct with names", path, f.Name.Name, n, maxParameters)
			}
		}
	})
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no comment that says what it is for: add a doc.go", cmp.Or(dir, "."))
		}
	}
}

// parameters counts what a function takes beside its context.
func parameters(f *ast.FuncDecl) int {
	n := f.Type.Params.NumFields()
	if n > 0 {
		if kind, ok := f.Type.Params.List[0].Type.(*ast.SelectorExpr); ok && kind.Sel.Name == "Context" {
			n--
		}
	}
	return n
}

// The scheduler's rule is about calls, which imports can't tell.
func TestStyle_SchedulerReadsNoClock(t *testing.T) {
	seen := 0
	eachFile(t, func(path string, data []byte) {
		if !strings.HasPrefix(path, "registry/scheduler/") || strings.HasSuffix(path, "_test.go") || !strings.HasSuffix(path, ".go") {
			return
		}
		seen++
		if bytes.Contains(data, []byte("time.Now(")) || bytes.Contains(data, []byte("time.Since(")) {
			t.Error(fmt.Sprint(path, " reads the clock: placement is a pure function"))
		}
	})
	if seen == 0 {
		t.Error("registry/scheduler is gone: remove this test")
	}
}
