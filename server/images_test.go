package server_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/archive"
	"github.com/muster-cloud/muster/server"
)

// tree is a tar file with one file of random content.
func tree(t *testing.T, name string, size int) []byte {
	t.Helper()
	content := make([]byte, size)
	_, _ = rand.Read(content)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(size), Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestServer_ImportRefuses(t *testing.T) {
	dir := t.TempDir()
	s := open(t, server.Options{DataDir: dir, Images: archive.Limits{Unpacked: 1 << 20}})
	defer run(t, s)()
	defer http.DefaultClient.CloseIdleConnections()
	good := tree(t, "a", 1000)
	for name, c := range map[string]struct {
		image   string
		header  http.Header
		host    string
		body    []byte
		status  int
		message string
	}{
		"another web page":         {"x", http.Header{"Origin": {"https://evil.example"}}, "", good, 403, "origin may not call"},
		"another site's request":   {"x", http.Header{"Sec-Fetch-Site": {"cross-site"}}, "", good, 403, "origin may not call"},
		"a foreign host":           {"x", nil, "evil.example", good, 421, "is not served here"},
		"a name that is none":      {"-x", nil, "", good, 400, "name: "},
		"a path in the name":       {"..%2f..%2fetc", nil, "", good, 400, "name: "},
		"another checksum":         {"x", http.Header{"Content-Digest": {"sha-256=:AAAA:"}}, "", good, 400, "did not arrive as it was sent"},
		"a bad entry":              {"x", nil, "", tree(t, "/etc/passwd", 10), 400, `the entry \"/etc/passwd\"`},
		"more than there may be":   {"x", nil, "", tree(t, "zeros", 3<<20), 413, `the entry \"zeros\"`},
		"something that is no tar": {"x", nil, "", []byte("hello"), 400, "ends in the middle"},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequest(http.MethodPut, "http://"+s.Addr().String()+"/images/"+c.image, bytes.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			request.Host = c.host
			for key, value := range c.header {
				request.Header[key] = value
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != c.status || !strings.Contains(string(text), c.message) {
				t.Errorf("it answered %d, %v: %s", response.StatusCode, err, text)
			}
		})
	}
	if left, err := os.ReadDir(filepath.Join(dir, "images")); err != nil || len(left) > 0 {
		t.Errorf("they left %v, %v", left, err)
	}
	if images, err := connect(t, s).Images(t.Context(), muster.PageInput{}); err != nil || images.TotalCount != 0 {
		t.Errorf("there is %+v, %v", images, err)
	}
}

func TestServer_ImportsOfOneNameAtOnce(t *testing.T) {
	s := open(t, server.Options{})
	defer run(t, s)()
	c := connect(t, s)
	digests := map[string]bool{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			image, err := c.ImportImage(t.Context(), "web", fmt.Sprint("number ", i), bytes.NewReader(tree(t, "a", 200_000)))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			digests[image.Digest] = true
		})
	}
	group.Wait()
	image, err := c.Image(t.Context(), "web")
	if err != nil || !digests[image.Digest] || len(digests) != 8 {
		t.Fatalf("of %d digests it has %+v, %v", len(digests), image, err)
	}
	body, size, err := c.OpenImage(t.Context(), image.Digest, 0)
	if err != nil || size != image.Size {
		t.Fatalf("its archive has %d bytes, %v, not %d", size, err, image.Size)
	}
	defer body.Close()
	if got, err := archive.Unpack(t.Context(), t.TempDir(), body, archive.Limits{}); err != nil || got.Digest != image.Digest {
		t.Errorf("its archive is %+v, %v", got, err)
	}
}

func TestServer_SendsAnArchiveInParts(t *testing.T) {
	s := open(t, server.Options{})
	defer run(t, s)()
	c := connect(t, s)
	image, err := c.ImportImage(t.Context(), "web", "a test", bytes.NewReader(tree(t, "a", 500_000)))
	if err != nil {
		t.Fatal(err)
	}
	part := func(offset int64) ([]byte, error) {
		body, size, err := c.OpenImage(t.Context(), image.Digest, offset)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		if size != image.Size {
			t.Errorf("from %d on it says that there are %d bytes in all", offset, size)
		}
		return io.ReadAll(body)
	}
	whole, err := part(0)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := part(123_456)
	if err != nil || !bytes.Equal(rest, whole[123_456:]) {
		t.Errorf("the rest from a place on is another: %d bytes, %v", len(rest), err)
	}
	if _, err := part(image.Size + 1); err == nil {
		t.Error("what is beyond its end was sent")
	}
	if _, _, err := c.OpenImage(t.Context(), "sha256:"+strings.Repeat("0", 64), 0); muster.CodeOf(err) != muster.NotFound {
		t.Errorf("one that is not there: %v", err)
	}
}

func TestServer_AnUploadThatFailsAtItsSourceImportsNothing(t *testing.T) {
	s := open(t, server.Options{})
	defer run(t, s)()
	c := connect(t, s)
	cut := errors.New("the cable is cut")
	_, err := c.ImportImage(t.Context(), "web", "", io.MultiReader(bytes.NewReader(tree(t, "a", 5000)), failing{cut}))
	if !errors.Is(err, cut) {
		t.Errorf("the caller learns %v", err)
	}
	if _, err := c.Image(t.Context(), "web"); muster.CodeOf(err) != muster.NotFound {
		t.Errorf("there is one: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A stop does not wait for who reads an archive slowly, or sends one.
func TestServer_StopEndsTransfers(t *testing.T) {
	s := open(t, server.Options{})
	stop := run(t, s)
	c := connect(t, s)
	image, err := c.ImportImage(t.Context(), "web", "", bytes.NewReader(tree(t, "a", 32<<20)))
	if err != nil {
		t.Fatal(err)
	}
	body, _, err := c.OpenImage(t.Context(), image.Digest, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sending, sent := io.Pipe()
	imported := make(chan error, 1)
	go func() {
		_, err := c.ImportImage(ctx, "other", "", sending)
		imported <- err
	}()
	if _, err := sent.Write(tree(t, "a", 5000)[:2000]); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	n, err := io.Copy(io.Discard, body)
	if err == nil {
		t.Errorf("all of it was sent after the stop: %d bytes", n)
	}
	cancel()
	if err := sent.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-imported; err == nil {
		t.Error("half of an archive was imported")
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A transfer goes on for as long as the key does that it was begun with.
func TestImages_TransfersEndWithTheirKey(t *testing.T) {
	w := newTown(t)
	revoke := func(key string) {
		w.must(admin, fmt.Sprintf(`mutation { revokeAccessKey(input: {id: %q}) { revision } }`, idOf(key)))
	}
	image, err := w.client(w.keys[admin]).ImportImage(t.Context(), "web", "", bytes.NewReader(tree(t, "a", 32<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("a download", func(t *testing.T) {
		key, _ := w.join("a-reads")
		body, _, err := w.client(key).OpenImage(t.Context(), image.Digest, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		revoke(key)
		if n, err := io.Copy(io.Discard, body); err == nil {
			t.Errorf("all of it was sent: %d bytes", n)
		}
	})
	t.Run("an upload", func(t *testing.T) {
		key := w.key("OPERATOR", "")
		sending, sent := io.Pipe()
		imported := make(chan error, 1)
		go func() {
			_, err := w.client(key).ImportImage(t.Context(), "other", "", sending)
			_ = sending.CloseWithError(err)
			imported <- err
		}()
		archive := bytes.NewReader(tree(t, "b", 32<<20))
		if _, err := io.CopyN(sent, archive, 1000); err != nil {
			t.Fatal(err)
		}
		revoke(key)
		if n, err := io.Copy(sent, archive); err == nil {
			t.Errorf("all of it was taken: %d bytes", n)
		}
		_ = sent.Close()
		if err := <-imported; muster.CodeOf(err) != muster.Forbidden {
			t.Errorf("its sender got %v", err)
		}
	})
}

func TestServer_SweepsWhatNoImageNeeds(t *testing.T) {
	dir := t.TempDir()
	s := open(t, server.Options{DataDir: dir})
	stop := run(t, s)
	c := connect(t, s)
	for _, name := range []string{"stays", "goes"} {
		if _, err := c.ImportImage(t.Context(), name, "", bytes.NewReader(tree(t, name, 1000))); err != nil {
			t.Fatal(err)
		}
	}
	if removed, err := c.RemoveImage(t.Context(), "goes"); err != nil || removed.UsedBy != 0 || removed.Image.Name != "goes" {
		t.Fatalf("removed %+v, %v", removed, err)
	}
	if err := errors.Join(stop(), s.Close()); err != nil {
		t.Fatal(err)
	}
	defer run(t, open(t, server.Options{DataDir: dir}))()
	eventually(t, "one archive is left", func() bool {
		left, err := os.ReadDir(filepath.Join(dir, "images"))
		return err == nil && len(left) == 1
	})
}
