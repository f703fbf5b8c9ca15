package console_test

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const stale = "run `make generate` and commit what it changes"

// manifest is what the build wrote beside the bundle.
type manifest struct {
	Inputs map[string]string `json:"inputs"`
	Files  map[string]string `json:"files"`
}

func readManifest(t *testing.T) manifest {
	t.Helper()
	data, err := os.ReadFile("assets/manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func TestBundle_IsBuiltFromTheseSources(t *testing.T) {
	got := map[string]string{}
	ui := os.DirFS("ui")
	err := fs.WalkDir(ui, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.Name() == "node_modules" {
				return fs.SkipDir
			}
			return err
		}
		data, err := fs.ReadFile(ui, path)
		got[path] = sum(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(readManifest(t).Inputs, got); diff != "" {
		t.Errorf("the sources in ui/ are not those that the bundle was built from (-bundle +sources): %s\n%s", stale, diff)
	}
}

func TestBundle_IsWhatTheBuildWrote(t *testing.T) {
	want := readManifest(t).Files
	entries, err := os.ReadDir("assets")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range entries {
		if name, zipped := strings.CutSuffix(e.Name(), ".gz"); zipped {
			got[name] = sum(unzip(t, "assets/"+e.Name()))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the bundle was changed after it was built (-built +found): %s\n%s", stale, diff)
	}
	for _, name := range []string{"index.html", "main.js", "main.css", "editor.js", "json.js", "graphql.js", "licenses.txt"} {
		if !slices.Contains(slices.Collect(maps.Keys(got)), name) {
			t.Errorf("the bundle lacks %s", name)
		}
	}
}

func TestBundle_LockFileNamesNoDownloadAddress(t *testing.T) {
	data, err := os.ReadFile("ui/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), `"resolved"`) {
		t.Error("ui/package-lock.json has download addresses: write it with npm install --omit-lockfile-registry-resolved")
	}
}

func TestBundle_CarriesLicences(t *testing.T) {
	text := string(unzip(t, "assets/licenses.txt.gz"))
	for _, name := range []string{"graphiql ", "graphql ", "graphql-ws ", "monaco-editor ", "react ", "react-dom "} {
		if !strings.Contains(text, "\n"+name) {
			t.Errorf("no licence of %s in licenses.txt", name)
		}
	}
}

func unzip(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
