package images_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/archive"
	"github.com/muster-cloud/muster/registry/images"
)

func open(t *testing.T, o images.Options) *images.Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = filepath.Join(t.TempDir(), "images")
	}
	s, err := images.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tree is a tar file with a file of random content, and one with a name.
func tree(t *testing.T, name string, size int) []byte {
	t.Helper()
	content := make([]byte, size)
	_, _ = rand.Read(content)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range []tar.Header{{Name: "content", Size: int64(size), Mode: 0o644}, {Name: name, Mode: 0o644}} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content[:h.Size]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, " ")
}

func TestStore_KeepsAnArchiveOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Dir: dir})
	data := tree(t, "a", 100_000)
	var group sync.WaitGroup
	var mu sync.Mutex
	var kept []*images.Archive
	for range 8 {
		group.Go(func() {
			a, err := s.Import(t.Context(), bytes.NewReader(data), nil)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			kept = append(kept, a)
		})
	}
	group.Wait()
	for _, a := range kept {
		if a.Digest != kept[0].Digest || a.Size != kept[0].Size {
			t.Errorf("the same archive is %+v and %+v", a, kept[0])
		}
	}
	if got := names(t, dir); got != strings.TrimPrefix(kept[0].Digest, "sha256:")+".tar.zst" {
		t.Errorf("the directory has %q", got)
	}
	f, err := s.Open(kept[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unpacked, err := archive.Unpack(t.Context(), t.TempDir(), f, archive.Limits{})
	if err != nil || unpacked.Digest != kept[0].Digest {
		t.Errorf("what is kept is %+v, %v", unpacked, err)
	}
	// It goes only once nobody holds or needs it.
	none := func() map[string]bool { return nil }
	for i, a := range kept {
		if removed, err := s.Sweep(none); err != nil || len(removed) > 0 {
			t.Fatalf("with %d holding it, %v was removed, %v", len(kept)-i, removed, err)
		}
		a.Release()
	}
	needed := func() map[string]bool { return map[string]bool{kept[0].Digest: true} }
	if removed, err := s.Sweep(needed); err != nil || len(removed) > 0 {
		t.Errorf("though needed, %v was removed, %v", removed, err)
	}
	if removed, err := s.Sweep(none); err != nil || len(removed) != 1 {
		t.Errorf("not needed, %v was removed, %v", removed, err)
	}
	if _, err := s.Open(kept[0].Digest); muster.CodeOf(err) != muster.NotFound {
		t.Errorf("after that it opens with %v", err)
	}
}

func TestStore_AnotherImportRepairsWhatWasDamaged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	s := open(t, images.Options{Dir: dir})
	data := tree(t, "a", 1000)
	a, err := s.Import(t.Context(), bytes.NewReader(data), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Release()
	if err := os.WriteFile(filepath.Join(dir, names(t, dir)), []byte("rot"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := s.Import(t.Context(), bytes.NewReader(data), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	f, err := s.Open(a.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := archive.Unpack(t.Context(), t.TempDir(), f, archive.Limits{}); err != nil || got.Digest != a.Digest {
		t.Errorf("it is %+v, %v", got, err)
	}
}

func TestStore_WhatFailsLeavesNothing(t *testing.T) {
	whole := tree(t, "a", 100_000)
	cut := errors.New("the cable is cut")
	for name, c := range map[string]struct {
		from    io.Reader
		check   error
		limits  archive.Limits
		reserve int64
		code    muster.Code
		message string
	}{
		"an archive with a bad entry":   {bytes.NewReader(tree(t, "../a", 10)), nil, archive.Limits{}, 0, muster.Invalid, `the entry "../a" of the archive leads out`},
		"one that is too large":         {bytes.NewReader(whole), nil, archive.Limits{Unpacked: 1000}, 0, muster.Limit, `the entry "content" of the archive of 100000 bytes`},
		"one that breaks off":           {io.MultiReader(bytes.NewReader(whole[:50_000]), broken{cut}), nil, archive.Limits{}, 0, muster.Unavailable, "the cable is cut"},
		"half of one":                   {bytes.NewReader(whole[:50_000]), nil, archive.Limits{}, 0, muster.Invalid, "ends in the middle"},
		"one that arrived as another":   {bytes.NewReader(whole), muster.Errorf(muster.Invalid, "another checksum"), archive.Limits{}, 0, muster.Invalid, "another checksum"},
		"one that needs the last bytes": {bytes.NewReader(whole), nil, archive.Limits{}, 1 << 60, muster.Unavailable, "for the database: free some space"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "images")
			s := open(t, images.Options{Dir: dir, Limits: c.limits, Reserve: c.reserve})
			_, err := s.Import(t.Context(), c.from, func() error { return c.check })
			if muster.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.message) {
				t.Errorf("%v, want %s that says %q", err, c.code, c.message)
			}
			if got := names(t, dir); got != "" {
				t.Errorf("it left %q", got)
			}
		})
	}
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestStore_AFullDiskLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("muster-test", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatalf("mount a small disk: %v; run this test as root", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	free := func() uint64 {
		var disk unix.Statfs_t
		if err := unix.Statfs(dir, &disk); err != nil {
			t.Fatal(err)
		}
		return disk.Bfree
	}
	s := open(t, images.Options{Dir: filepath.Join(dir, "images"), Reserve: 1})
	before := free()
	_, err := s.Import(t.Context(), bytes.NewReader(tree(t, "a", 20<<20)), nil)
	if muster.CodeOf(err) != muster.Unavailable || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("20 MB on a disk of 8: %v", err)
	}
	if got := names(t, filepath.Join(dir, "images")); got != "" || free() != before {
		t.Errorf("it left %q, and %d of %d blocks free", got, free(), before)
	}
	a, err := s.Import(t.Context(), bytes.NewReader(tree(t, "a", 1<<20)), nil)
	if err != nil {
		t.Fatalf("afterwards a small one: %v", err)
	}
	a.Release()
	// With a reserve, it ends before the disk is full.
	s = open(t, images.Options{Dir: filepath.Join(dir, "images"), Reserve: 4 << 20})
	_, err = s.Import(t.Context(), bytes.NewReader(tree(t, "a", 20<<20)), nil)
	if muster.CodeOf(err) != muster.Unavailable || !strings.Contains(err.Error(), "for the database") {
		t.Errorf("20 MB on a disk of 8 with a reserve of 4: %v", err)
	}
}

func TestOpen_RemovesWhatACrashLeft(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".import-123", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, images.Options{Dir: dir})
	if got := names(t, dir); got != "notes.txt" {
		t.Errorf("the directory has %q", got)
	}
	if removed, err := s.Sweep(func() map[string]bool { return nil }); err != nil || len(removed) > 0 {
		t.Errorf("a file of somebody else's: %v, %v", removed, err)
	}
	for _, digest := range []string{"", "sha256:", "../../etc/passwd", "sha256:../" + strings.Repeat("a", 61)} {
		if _, err := s.Open(digest); muster.CodeOf(err) != muster.Invalid {
			t.Errorf("open %q: %v", digest, err)
		}
	}
}

func TestStore_WaitsForATurn(t *testing.T) {
	s := open(t, images.Options{Parallel: 1})
	begun, end := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		_, err := s.Import(t.Context(), &stalled{begun: begun, end: end}, nil)
		done <- err
	}()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Import(ctx, bytes.NewReader(tree(t, "a", 10)), nil); muster.CodeOf(err) != muster.Unavailable {
		t.Errorf("a second one at a time: %v", err)
	}
	close(end)
	if err := <-done; muster.CodeOf(err) != muster.Invalid {
		t.Error(err)
	}
	if a, err := s.Import(t.Context(), bytes.NewReader(tree(t, "a", 10)), nil); err != nil {
		t.Error(err)
	} else {
		a.Release()
	}
}

// stalled tells when it is read, and ends when it is told to.
type stalled struct{ begun, end chan struct{} }

func (s *stalled) Read([]byte) (int, error) {
	if s.begun != nil {
		close(s.begun)
		s.begun = nil
	}
	<-s.end
	return 0, io.EOF
}
