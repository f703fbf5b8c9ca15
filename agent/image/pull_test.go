package image_test

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
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/archive"
)

// origin is a server's archives, with a connection that can be cut.
type origin struct {
	mu       sync.Mutex
	archives map[string][]byte
	offsets  []int64 // that were asked for
	sent     atomic.Int64
	// cut shortens what is sent in a try, by its number; nil: never.
	cut func(try int, body []byte) (io.Reader, error)
}

func (o *origin) OpenImage(_ context.Context, digest string, offset int64) (io.ReadCloser, int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.offsets = append(o.offsets, offset)
	data, ok := o.archives[digest]
	switch {
	case !ok:
		return nil, 0, muster.Errorf(muster.NotFound, "the server has no archive with the digest %s", digest)
	case offset >= int64(len(data)):
		return nil, 0, muster.Errorf(muster.Invalid, "answered 416")
	}
	body := io.Reader(bytes.NewReader(data[offset:]))
	if o.cut != nil {
		var err error
		if body, err = o.cut(len(o.offsets), data[offset:]); err != nil {
			return nil, 0, err
		}
	}
	return io.NopCloser(io.TeeReader(body, counting{&o.sent})), int64(len(data)), nil
}

type counting struct{ n *atomic.Int64 }

func (c counting) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// add packs a tree with a file of random content and returns its digest.
func (o *origin) add(t *testing.T, name string, size int) string {
	t.Helper()
	content := make([]byte, size)
	_, _ = rand.Read(content)
	return o.put(t, name, content)
}

// put packs a tree with a file and returns its digest.
func (o *origin) put(t *testing.T, name string, content []byte) string {
	t.Helper()
	size := len(content)
	var plain, canonical bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range []tar.Header{{Typeflag: tar.TypeReg, Name: "sbin/init", Mode: 0o755, Size: int64(size)}, {Typeflag: tar.TypeReg, Name: name, Mode: 0o644}} {
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
	made, err := archive.Canonical(t.Context(), &canonical, &plain, archive.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if o.archives == nil {
		o.archives = map[string][]byte{}
	}
	o.archives[made.Digest] = canonical.Bytes()
	return made.Digest
}

func puller(dir string, from image.Source) *image.Puller {
	return image.NewPuller(image.PullerOptions{Store: image.Open(dir), From: from, Pause: time.Millisecond})
}

// there checks that an image is on the node, and nothing else of it.
func there(t *testing.T, dir, name, digest string) {
	t.Helper()
	img, err := image.Open(dir).Resolve(name, digest)
	if err != nil {
		t.Fatal(err)
	}
	if img.Name != name || img.Digest != digest || img.Init != "/sbin/init" || img.Boot || img.Created.IsZero() {
		t.Errorf("the image is %+v", img)
	}
	if _, err := os.Stat(filepath.Join(img.Path, "sbin/init")); err != nil {
		t.Error(err)
	}
	checkEntries(t, filepath.Join(dir, ".pulled"), strings.TrimPrefix(digest, "sha256:"))
	if info, err := os.Stat(filepath.Join(dir, ".pulled")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("everybody can enter: %v, %v", info.Mode(), err)
	}
}

func TestPuller_Pulls(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	from := &origin{}
	digest := from.add(t, "a", 300_000)
	p := puller(dir, from)
	if p.Has(digest) {
		t.Error("it is there before it was pulled")
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := p.Pull(t.Context(), "web", digest); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	there(t, dir, "web", digest)
	if len(from.offsets) != 1 || !p.Has(digest) {
		t.Errorf("8 that wanted it made %d downloads", len(from.offsets))
	}
	if own, err := image.Open(dir).List(); err != nil || len(own) != 0 {
		t.Errorf("the node's own are %v, %v", own, err)
	}
	if _, err := image.Open(dir).Find("web"); !errors.Is(err, driver.ErrNoImage) {
		t.Errorf("by its name alone: %v", err)
	}
}

func TestPuller_GoesOnWhereItWas(t *testing.T) {
	refused := muster.Errorf(muster.Unavailable, "connection refused")
	half := func(_ int, body []byte) (io.Reader, error) {
		return io.MultiReader(bytes.NewReader(body[:len(body)/2]), iotest.ErrReader(io.ErrUnexpectedEOF)), nil
	}
	for name, cut := range map[string]func(int, []byte) (io.Reader, error){
		"after a connection that broke": func(try int, body []byte) (io.Reader, error) {
			if try < 4 {
				return half(try, body)
			}
			return bytes.NewReader(body), nil
		},
		"after an end that came early": func(try int, body []byte) (io.Reader, error) {
			return bytes.NewReader(body[:max(len(body)/2, min(len(body), 1000))]), nil
		},
		"after a server that was away": func(try int, body []byte) (io.Reader, error) {
			switch {
			case try == 1:
				return half(try, body)
			case try < 5:
				return nil, refused
			}
			return bytes.NewReader(body), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from := &origin{cut: cut}
			digest := from.add(t, "a", 300_000)
			if err := puller(dir, from).Pull(t.Context(), "web", digest); err != nil {
				t.Fatal(err)
			}
			there(t, dir, "web", digest)
			if size := int64(len(from.archives[digest])); len(from.offsets) < 4 || from.sent.Load() != size {
				t.Errorf("%d bytes were sent from %v on, of %d", from.sent.Load(), from.offsets, size)
			}
		})
	}
}

// A puller of a later process has what came to an earlier one, and also one that had come as a whole.
func TestPuller_GoesOnInAnotherProcess(t *testing.T) {
	for name, part := range map[string]func([]byte) []byte{
		"half of it":             func(data []byte) []byte { return data[:len(data)/2] },
		"all of it":              func(data []byte) []byte { return data },
		"half of something else": func(data []byte) []byte { return make([]byte, len(data)/2) },
		"more than all of it":    func(data []byte) []byte { return append(bytes.Clone(data), make([]byte, 100)...) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from := &origin{}
			digest := from.add(t, "a", 300_000)
			pulled := filepath.Join(dir, ".pulled")
			for _, name := range []string{".making-1/root/x", ".gone-2/root/x"} {
				if err := os.MkdirAll(filepath.Join(pulled, name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(pulled, ".part-"+strings.TrimPrefix(digest, "sha256:")), part(from.archives[digest]), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := puller(dir, from).Pull(t.Context(), "web", digest); err != nil {
				t.Fatal(err)
			}
			there(t, dir, "web", digest)
			if from.offsets[0] == 0 {
				t.Errorf("it began anew: %v", from.offsets)
			}
		})
	}
}

func TestPuller_AContextEndsIt(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	from := &origin{}
	from.cut = func(_ int, body []byte) (io.Reader, error) {
		return io.MultiReader(bytes.NewReader(body[:1000]), readerFunc(func([]byte) (int, error) { cancel(); return 0, io.ErrUnexpectedEOF })), nil
	}
	digest := from.add(t, "a", 300_000)
	p := puller(dir, from)
	if err := p.Pull(ctx, "web", digest); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	from.cut = nil
	if err := p.Pull(t.Context(), "web", digest); err != nil {
		t.Fatal(err)
	}
	if len(from.offsets) != 2 || from.offsets[1] != 1000 {
		t.Errorf("what had come was not kept: %v", from.offsets)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// What unpacks to too much is what the whole of it unpacks to, for the server and for a node.
func TestPuller_TakesWhatTheServerTakes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	from := &origin{}
	content := make([]byte, 81<<20)
	_, _ = rand.Read(content[80<<20:])
	digest := from.put(t, "zeros-first", content)
	if err := puller(dir, from).Pull(t.Context(), "web", digest); err != nil {
		t.Fatal(err)
	}
	there(t, dir, "web", digest)
}

func TestPuller_RefusesForGood(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(o *origin, digest string)
		limits  archive.Limits
		message string
	}{
		"what the server does not have": {func(o *origin, digest string) { delete(o.archives, digest) }, archive.Limits{}, "the server has no archive"},
		"another tree": {func(o *origin, digest string) {
			o.archives[digest] = o.archives[o.add(t, "another", 10)]
		}, archive.Limits{}, "what came has the digest sha256:"},
		"a flipped bit": {func(o *origin, digest string) {
			data := bytes.Clone(o.archives[digest])
			data[len(data)/2] ^= 1
			o.archives[digest] = data
		}, archive.Limits{}, "pull image web: "},
		"an evil archive":        {func(o *origin, digest string) { o.archives[digest] = evil(t) }, archive.Limits{}, `the entry "../../evil"`},
		"more than may come":     {func(*origin, string) {}, archive.Limits{Upload: 1000}, "at most 1000 are allowed here"},
		"more than may be there": {func(*origin, string) {}, archive.Limits{Unpacked: 1000}, `the entry "sbin/init"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "images")
			from := &origin{}
			digest := from.add(t, "a", 100_000)
			c.change(from, digest)
			p := image.NewPuller(image.PullerOptions{Store: image.Open(dir), From: from, Limits: c.limits})
			err := p.Pull(t.Context(), "web", digest)
			if err == nil || !strings.Contains(err.Error(), c.message) {
				t.Errorf("%v, want one that says %q", err, c.message)
			}
			checkEntries(t, filepath.Join(dir, ".pulled"))
			if len(from.offsets) != 1 {
				t.Errorf("it was tried %d times", len(from.offsets))
			}
			if around, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(around) != 1 {
				t.Errorf("beside the store there is %v, %v", around, err)
			}
		})
	}
	if err := puller(t.TempDir(), &origin{}).Pull(t.Context(), "web", "sha256:../../x"); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("a digest that is none: %v", err)
	}
}

func evil(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "../../evil", Mode: 0o644}), w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestPuller_AFullDiskLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("muster-test", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatalf("mount a small disk: %v; run this test as root", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	from := &origin{}
	for size, what := range map[int]string{8 << 20: "its archive", 3 << 20: "its tree"} {
		digest := from.add(t, "a", size)
		err := puller(dir, from).Pull(t.Context(), "web", digest)
		if muster.CodeOf(err) != muster.Unavailable || !strings.Contains(err.Error(), "free some space") {
			t.Errorf("no room for %s: %v", what, err)
		}
		checkEntries(t, filepath.Join(dir, ".pulled"))
	}
	small := from.add(t, "a", 100_000)
	if err := puller(dir, from).Pull(t.Context(), "web", small); err != nil {
		t.Fatal(err)
	}
	there(t, dir, "web", small)
}

func TestPuller_Retires(t *testing.T) {
	dir := t.TempDir()
	from := &origin{}
	p := image.NewPuller(image.PullerOptions{Store: image.Open(dir), From: from, Keep: time.Hour})
	old, now, other := from.add(t, "a", 10), from.add(t, "b", 10), from.add(t, "c", 10)
	for _, pull := range [][2]string{{"web", old}, {"web", now}, {"other", other}} {
		if err := p.Pull(t.Context(), pull[0], pull[1]); err != nil {
			t.Fatal(err)
		}
	}
	retire := func(used ...string) {
		t.Helper()
		set := map[string]bool{}
		for _, digest := range used {
			set[digest] = true
		}
		remove, err := p.Retire(set)
		if err := errors.Join(err, remove()); err != nil {
			t.Error(err)
		}
	}
	has := func(want map[string]bool) {
		t.Helper()
		for digest, there := range want {
			if p.Has(digest) != there {
				t.Errorf("%s is there: %t", digest, !there)
			}
		}
	}
	retire(old) // something still runs on the old one
	has(map[string]bool{old: true, now: true, other: true})
	retire()
	has(map[string]bool{old: false, now: true, other: true})
	// The others stay for a while after their last use.
	past := time.Now().Add(-2 * time.Hour)
	for _, digest := range []string{now, other} {
		if err := os.Chtimes(filepath.Join(dir, ".pulled", strings.TrimPrefix(digest, "sha256:"), "image.json"), past, past); err != nil {
			t.Fatal(err)
		}
	}
	part := filepath.Join(dir, ".pulled/.part-"+strings.TrimPrefix(old, "sha256:"))
	if err := os.WriteFile(part, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	retire(now)
	has(map[string]bool{now: true, other: false})
	retire()
	has(map[string]bool{now: true})
	checkEntries(t, filepath.Join(dir, ".pulled"), strings.TrimPrefix(now, "sha256:"))
}
