package artifact_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/artifact"
)

func sumOf(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// serve answers with an artifact, and with everything that can go wrong.
func serve(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/app", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/app", http.StatusFound) })
	mux.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) })
	mux.HandleFunc("/to-file", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
	})
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 2000)) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
	})
	stalled := make(chan struct{})
	t.Cleanup(func() { close(stalled) })
	for path, first := range map[string]string{"/stalls": "", "/stalls-later": "some"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if first != "" {
				_, _ = io.WriteString(w, first)
				_ = http.NewResponseController(w).Flush()
			}
			select {
			case <-stalled:
			case <-r.Context().Done():
			}
		})
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// hostFiles makes an allowed directory beside one that is not.
func hostFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	allowed := filepath.Join(dir, "allowed")
	err := errors.Join(
		os.Mkdir(allowed, 0o755),
		os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600),
		os.WriteFile(filepath.Join(allowed, "app"), []byte("hello"), 0o600),
		os.Symlink("app", filepath.Join(allowed, "link")),
		os.Symlink("../secret", filepath.Join(allowed, "out")),
		os.Symlink("/etc/passwd", filepath.Join(allowed, "absolute")),
		unix.Mkfifo(filepath.Join(allowed, "pipe"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	return allowed
}

func TestFetch(t *testing.T) {
	server, allowed := serve(t), hostFiles(t)
	dir := t.TempDir()
	f := artifact.New(artifact.Options{Dir: dir, Limit: 1000, Stall: 200 * time.Millisecond, HostPaths: []string{allowed}})
	hello := sumOf("hello")
	for name, c := range map[string]struct {
		url, sum string
		code     muster.Code // empty: it is got
		message  string
	}{
		"without a checksum":     {server.URL + "/app", "", "", ""},
		"with its checksum":      {server.URL + "/app", hello, "", ""},
		"in upper case":          {server.URL + "/app", strings.ToUpper(hello), "", ""},
		"with another checksum":  {server.URL + "/app", sumOf("x"), muster.Invalid, "is " + hello + ", not " + sumOf("x")},
		"moved":                  {server.URL + "/moved", hello, "", ""},
		"moved for ever":         {server.URL + "/round", "", muster.Unavailable, "leads on more than 5 times"},
		"moved to a file":        {server.URL + "/to-file", "", muster.Unavailable, "unsupported protocol scheme"},
		"not there":              {server.URL + "/nothing", "", muster.NotFound, "the answer is 404"},
		"a broken server":        {server.URL + "/broken", "", muster.Unavailable, "the answer is 502"},
		"nobody answers":         {"http://127.0.0.1:1/app", "", muster.Unavailable, "connection refused"},
		"too large":              {server.URL + "/large", "", muster.Limit, "more than 1000 bytes: make it smaller, or raise the agent's --artifact-limit"},
		"cut":                    {server.URL + "/cut", "", muster.Unavailable, "broke off after 4 bytes"},
		"no answer comes":        {server.URL + "/stalls", "", muster.Unavailable, "nothing came for 200ms"},
		"nothing more comes":     {server.URL + "/stalls-later", "", muster.Unavailable, "nothing came for 200ms"},
		"no URL":                 {"://", "", muster.Invalid, "is no URL"},
		"another scheme":         {"ftp://127.0.0.1/app", "", muster.Invalid, "neither http, https nor file"},
		"a file":                 {"file://" + allowed + "/app", hello, "", ""},
		"a link that stays":      {"file://" + allowed + "/link", hello, "", ""},
		"a file elsewhere":       {"file:///etc/passwd", "", muster.Forbidden, "--allow-host-path /etc"},
		"a file beside":          {"file://" + filepath.Dir(allowed) + "/secret", "", muster.Forbidden, "not allowed"},
		"a file by dots":         {"file://" + allowed + "/../secret", "", muster.Forbidden, "not allowed"},
		"a file by encoded dots": {"file://" + allowed + "/%2e%2e/secret", "", muster.Forbidden, "not allowed"},
		"a name that begins so":  {"file://" + allowed + "-other/app", "", muster.Forbidden, "not allowed"},
		"a link that leads out":  {"file://" + allowed + "/out", "", muster.NotFound, "escapes"},
		"an absolute link":       {"file://" + allowed + "/absolute", "", muster.NotFound, "escapes"},
		"a pipe":                 {"file://" + allowed + "/pipe", "", muster.Invalid, "no file"},
		"a directory":            {"file://" + allowed, "", muster.Invalid, "no file"},
		"a file that is missing": {"file://" + allowed + "/nothing", "", muster.NotFound, "no such file"},
		"a file of a host":       {"file://example.org" + allowed + "/app", "", muster.Invalid, "three slashes"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := f.Fetch(t.Context(), c.url, c.sum)
			if c.code != "" {
				if muster.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.message) {
					t.Errorf("%v (%s), want %s saying %q", err, muster.CodeOf(err), c.code, c.message)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer got.Close()
			text, err := io.ReadAll(got)
			if err != nil || string(text) != "hello" || got.SHA256 != hello || got.Size != 5 {
				t.Errorf("got %q, %+v, %v", text, got, err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("it has a name: %v, %v", left, err)
			}
		})
	}
}

func TestFetch_GivenUp(t *testing.T) {
	server := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := artifact.New(artifact.Options{}).Fetch(ctx, server.URL+"/stalls-later", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that of the context", err)
	}
}

func TestFetch_NotFromTLSToNone(t *testing.T) {
	plain := serve(t)
	server := httptest.NewTLSServer(http.RedirectHandler(plain.URL+"/app", http.StatusFound))
	defer server.Close()
	_, err := artifact.New(artifact.Options{Transport: server.Client().Transport}).Fetch(t.Context(), server.URL, "")
	if muster.CodeOf(err) != muster.Unavailable || !strings.Contains(err.Error(), "without TLS") {
		t.Errorf("%v", err)
	}
	_, err = artifact.New(artifact.Options{}).Fetch(t.Context(), server.URL, "")
	if muster.CodeOf(err) != muster.Unavailable || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate that nobody knows: %v", err)
	}
}
