package deptest_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is the top of the repository, from this folder.
const root = "../.."

// skipped folders hold nothing that somebody wrote here.
var skipped = map[string]bool{".git": true, "bin": true, "node_modules": true, ".muster": true}

// eachFile calls visit with every file of the tree, its path relative to the
// top, in lexical order.
func eachFile(t *testing.T, visit func(path string, data []byte)) {
	t.Helper()
	count := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && skipped[d.Name()] {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		count++
		visit(filepath.ToSlash(name), data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if count < 50 {
		t.Fatalf("only %d files were found", count)
	}
}

// isGenerated tells whether a tool wrote the file.
func isGenerated(data []byte) bool {
	head, _, _ := bytes.Cut(data, []byte("\npackage "))
	return bytes.Contains(head, []byte("DO NOT EDIT"))
}

// isHandWritten tells whether path is Go code that the rules of style are for.
func isHandWritten(path string, data []byte) bool {
	return strings.HasSuffix(path, ".go") && !isGenerated(data)
}
