package artifact_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/artifact"
)

// origin answers every path with its last part, repeated, and counts how often it is asked.
type origin struct {
	t     *testing.T
	url   string
	asked atomic.Int64
	dir   string // of what is kept
}

// size is that of each artifact of an origin, in bytes.
const size = 100

func newOrigin(t *testing.T) *origin {
	o := &origin{t: t, dir: filepath.Join(t.TempDir(), "artifacts")}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.asked.Add(1)
		_, _ = w.Write(contentOf(filepath.Base(r.URL.Path)))
	}))
	t.Cleanup(server.Close)
	o.url = server.URL
	return o
}

func contentOf(name string) []byte { return bytes.Repeat([]byte(name), size/len(name)) }

func sum(name string) string { return sumOf(string(contentOf(name))) }

// open is a Fetcher as a new agent has it, with room for so many.
func (o *origin) open(room int64) *artifact.Fetcher {
	return artifact.New(artifact.Options{Dir: o.dir, Keep: room * size, HostPaths: []string{filepath.Dir(o.dir)}})
}

func uses(names ...string) map[string]bool {
	used := map[string]bool{}
	for _, name := range names {
		used[sum(name)] = true
	}
	return used
}

// get fetches one, keeps it, and reports how often the origin was asked.
func (o *origin) get(f *artifact.Fetcher, name, checksum string, used ...string) (asked int64) {
	o.t.Helper()
	before := o.asked.Load()
	got, err := f.Fetch(o.t.Context(), o.url+"/"+name, checksum)
	if err != nil {
		o.t.Fatal(err)
	}
	defer got.Close()
	content, err := io.ReadAll(got)
	if err != nil || !bytes.Equal(content, contentOf(name)) || got.SHA256 != sum(name) || got.Size != size {
		o.t.Fatalf("got %q, %+v, %v", content, got, err)
	}
	if err := f.Keep(got, uses(used...)); err != nil {
		o.t.Fatal(err)
	}
	o.age()
	return o.asked.Load() - before
}

// age makes all that is kept older, so that what is used next is newest by the clocks of all file systems.
func (o *origin) age() {
	o.t.Helper()
	for _, path := range o.files() {
		info, err := os.Stat(path)
		if err == nil {
			at := info.ModTime().Add(-time.Hour)
			err = os.Chtimes(path, at, at)
		}
		if err != nil {
			o.t.Fatal(err)
		}
	}
}

func (o *origin) files() []string {
	o.t.Helper()
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		o.t.Fatal(err)
	}
	var paths []string
	for _, entry := range entries {
		paths = append(paths, filepath.Join(o.dir, entry.Name()))
	}
	return paths
}

// wantKept compares what is kept, all of it.
func (o *origin) wantKept(names ...string) {
	o.t.Helper()
	var got, want []string
	for _, path := range o.files() {
		got = append(got, filepath.Base(path))
	}
	for _, name := range names {
		want = append(want, sum(name))
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		o.t.Errorf("kept: %q, want %q", got, want)
	}
}

func TestKeep_AsksOnce(t *testing.T) {
	o := newOrigin(t)
	f := o.open(3)
	for _, c := range []struct {
		name, checksum string
		asked          int64
	}{
		{"a", sum("a"), 1},
		{"a", sum("a"), 0},
		{"a", strings.ToUpper(sum("a")), 0},
		{"a", "", 1}, // what is there now may be another
		{"b", sum("b"), 1},
		{"b", sum("b"), 0},
	} {
		if asked := o.get(f, c.name, c.checksum); asked != c.asked {
			t.Errorf("%s with the checksum %q: asked %d times, want %d", c.name, c.checksum, asked, c.asked)
		}
	}
	if asked := o.get(o.open(3), "a", sum("a")); asked != 0 {
		t.Errorf("a new agent asked %d times", asked)
	}
	o.wantKept("a", "b")
	if !f.Keeps(sum("a")) || f.Keeps(sum("c")) || f.Keeps("") || f.Keeps("../artifacts") {
		t.Error("it keeps something else than it says")
	}
	if info, err := os.Stat(o.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("others may look at what is kept: %v, %v", info.Mode(), err)
	}
}

func TestKeep_WhatWasUsedLastGoesLast(t *testing.T) {
	o := newOrigin(t)
	f := o.open(3)
	for _, name := range []string{"a", "b", "c"} {
		o.get(f, name, sum(name))
	}
	o.get(f, "a", sum("a"))
	o.get(f, "d", sum("d"))
	o.wantKept("a", "c", "d")
	o.get(f, "e", sum("e"), "c") // c would be the next
	o.wantKept("c", "d", "e")
	o.get(f, "f", sum("f"), "c", "d")
	o.wantKept("c", "d", "f")
}

func TestKeep_NeverInsteadOfWhatIsInUse(t *testing.T) {
	o := newOrigin(t)
	f := o.open(2)
	o.get(f, "a", sum("a"))
	o.get(f, "b", sum("b"))
	got, err := f.Fetch(t.Context(), o.url+"/c", "")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if err := f.Keep(got, uses("a", "b", "c")); muster.CodeOf(err) != muster.Limit || !strings.Contains(err.Error(), "--artifact-keep") {
		t.Errorf("without room: %v", err)
	}
	o.wantKept("a", "b")
	if err := f.Tidy(uses("a")); err != nil {
		t.Fatal(err)
	}
	o.wantKept("a", "b")
	if err := o.open(1).Tidy(uses("a")); err != nil { // less than before
		t.Fatal(err)
	}
	o.wantKept("a")
	if err := artifact.New(artifact.Options{Dir: o.dir, Keep: -1}).Tidy(nil); err != nil {
		t.Fatal(err)
	}
	o.wantKept()
	if asked := o.get(artifact.New(artifact.Options{Dir: o.dir, Keep: -1}), "a", sum("a")); asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	o.wantKept()
}

func TestRelease_LeavesWhatIsInUse(t *testing.T) {
	o := newOrigin(t)
	f := o.open(3)
	for _, name := range []string{"a", "b", "c"} {
		o.get(f, name, sum(name))
	}
	for _, want := range []int64{2 * size, 0} {
		if freed, err := f.Release(uses("b")); err != nil || freed != want {
			t.Errorf("%d bytes were freed, %v, want %d", freed, err, want)
		}
		o.wantKept("b")
	}
}

func TestKeep_DamagedOnesAreFetchedAnew(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"another byte": func(path string) error {
			return os.WriteFile(path, append(contentOf("a")[1:], 'b'), 0o600)
		},
		"half of it":         func(path string) error { return os.Truncate(path, size/2) },
		"more than it":       func(path string) error { return os.WriteFile(path, append(contentOf("a"), 'a'), 0o600) },
		"empty":              func(path string) error { return os.Truncate(path, 0) },
		"a directory":        func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"a link to the same": func(path string) error { return errors.Join(os.Rename(path, path+"x"), os.Symlink(path+"x", path)) },
	} {
		t.Run(name, func(t *testing.T) {
			o := newOrigin(t)
			f := o.open(3)
			o.get(f, "a", sum("a"))
			if err := damage(filepath.Join(o.dir, sum("a"))); err != nil {
				t.Fatal(err)
			}
			for _, want := range []int64{1, 0} {
				if asked := o.get(f, "a", sum("a")); asked != want {
					t.Errorf("asked %d times, want %d", asked, want)
				}
			}
		})
	}
}

func TestTidy_RemovesWhatIsNotWhole(t *testing.T) {
	o := newOrigin(t)
	if err := o.open(3).Tidy(nil); err != nil {
		t.Errorf("before anything was kept: %v", err)
	}
	o.get(o.open(3), "a", sum("a"))
	err := errors.Join(
		os.WriteFile(filepath.Join(o.dir, ".new-"+sum("b")), []byte("bb"), 0o600),
		os.WriteFile(filepath.Join(o.dir, "other"), nil, 0o600),
		os.MkdirAll(filepath.Join(o.dir, sum("c"), "d"), 0o700),
		os.Symlink(sum("a"), filepath.Join(o.dir, sum("d"))),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.open(3).Tidy(nil); err != nil {
		t.Fatal(err)
	}
	o.wantKept("a")
}

// TestKeep_NotWhatIsForbidden keeps a file of the node's, which is not given out when it is allowed no longer.
func TestKeep_NotWhatIsForbidden(t *testing.T) {
	o := newOrigin(t)
	path := filepath.Join(filepath.Dir(o.dir), "a")
	if err := os.WriteFile(path, contentOf("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := o.open(3)
	got, err := f.Fetch(t.Context(), "file://"+path, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Keep(got, nil), got.Close(), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	again, err := f.Fetch(t.Context(), "file://"+path, sum("a"))
	if err != nil {
		t.Fatalf("the file is gone: %v", err)
	}
	again.Close()
	f = artifact.New(artifact.Options{Dir: o.dir})
	if _, err := f.Fetch(t.Context(), "file://"+path, sum("a")); muster.CodeOf(err) != muster.Forbidden {
		t.Errorf("not allowed any more: %v", err)
	}
}

// TestKeep_ManyAtOnce has several services of the same and of other artifacts deployed at the same time.
func TestKeep_ManyAtOnce(t *testing.T) {
	o := newOrigin(t)
	f := o.open(2)
	failed := make(chan error)
	const many = 40
	for i := range many {
		go func() {
			name := string(rune('a' + i%4))
			got, err := f.Fetch(t.Context(), o.url+"/"+name, sum(name))
			if err == nil {
				content, readErr := io.ReadAll(got)
				if !bytes.Equal(content, contentOf(name)) {
					err = fmt.Errorf("%s has %q", name, content)
				}
				err = errors.Join(err, readErr, f.Keep(got, uses(name)), got.Close())
			}
			failed <- err
		}()
	}
	for range many {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if left := o.files(); len(left) != 2 {
		t.Errorf("kept: %q, want two", left)
	}
}
