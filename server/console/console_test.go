package console_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-cloud/muster/server/console"
)

func get(t *testing.T, method, path string, header map[string]string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for k, v := range header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	console.Handler().ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) []byte {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestHandler_TypesAndPolicy(t *testing.T) {
	for path, want := range map[string]string{
		"/":             "text/html; charset=utf-8",
		"/index.html":   "text/html; charset=utf-8",
		"/main.js":      "text/javascript; charset=utf-8",
		"/editor.js":    "text/javascript; charset=utf-8",
		"/json.js":      "text/javascript; charset=utf-8",
		"/graphql.js":   "text/javascript; charset=utf-8",
		"/main.css":     "text/css; charset=utf-8",
		"/codicon.ttf":  "font/ttf",
		"/icon.svg":     "image/svg+xml",
		"/licenses.txt": "text/plain; charset=utf-8",
	} {
		t.Run(path, func(t *testing.T) {
			r := get(t, "GET", path, nil)
			if r.StatusCode != http.StatusOK {
				t.Fatalf("status %d", r.StatusCode)
			}
			if got := r.Header.Get("Content-Type"); got != want {
				t.Errorf("Content-Type %q, want %q", got, want)
			}
			csp := r.Header.Get("Content-Security-Policy")
			for _, part := range []string{"default-src 'none'", "script-src 'self';", "worker-src 'self' blob:;", "connect-src 'self';", "frame-ancestors 'none'"} {
				if !strings.Contains(csp, part) {
					t.Errorf("policy %q lacks %q", csp, part)
				}
			}
			if r.Header.Get("X-Content-Type-Options") != "nosniff" || r.Header.Get("Referrer-Policy") != "no-referrer" {
				t.Errorf("headers %v", r.Header)
			}
		})
	}
}

func TestHandler_Encoding(t *testing.T) {
	for _, tt := range []struct {
		name, accept string
		gzip         bool
	}{
		{"none asked", "", false},
		{"gzip", "gzip", true},
		{"among others", "deflate, br, GZIP;q=0.5", true},
		{"anything", "*", true},
		{"refused", "gzip;q=0", false},
		{"refused against anything", "*, gzip; q=0.0", false},
		{"anything refused", "*;q=0", false},
		{"others only", "br, zstd", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plain := body(t, get(t, "GET", "/main.css", nil))
			r := get(t, "GET", "/main.css", map[string]string{"Accept-Encoding": tt.accept})
			got := body(t, r)
			if r.Header.Get("Vary") != "Accept-Encoding" {
				t.Errorf("Vary %q", r.Header.Get("Vary"))
			}
			if !tt.gzip {
				if r.Header.Get("Content-Encoding") != "" || !bytes.Equal(got, plain) {
					t.Fatalf("encoding %q, %d bytes, want %d plain ones", r.Header.Get("Content-Encoding"), len(got), len(plain))
				}
				return
			}
			if r.Header.Get("Content-Encoding") != "gzip" || r.Header.Get("Content-Length") != strconv.Itoa(len(got)) {
				t.Fatalf("headers %v for %d bytes", r.Header, len(got))
			}
			z, err := gzip.NewReader(bytes.NewReader(got))
			if err != nil {
				t.Fatal(err)
			}
			if unzipped, err := io.ReadAll(z); err != nil || !bytes.Equal(unzipped, plain) {
				t.Fatalf("unzips to %d bytes (%v), want %d", len(unzipped), err, len(plain))
			}
		})
	}
}

func TestHandler_NotModified(t *testing.T) {
	for _, accept := range []string{"", "gzip"} {
		etag := get(t, "GET", "/main.js", map[string]string{"Accept-Encoding": accept}).Header.Get("ETag")
		for _, tt := range []struct {
			name, match string
			want        int
		}{
			{"same", etag, http.StatusNotModified},
			{"weak", "W/" + etag, http.StatusNotModified},
			{"among others", `"x", ` + etag, http.StatusNotModified},
			{"any", "*", http.StatusNotModified},
			{"another", `"x"`, http.StatusOK},
		} {
			t.Run(accept+" "+tt.name, func(t *testing.T) {
				r := get(t, "GET", "/main.js", map[string]string{"Accept-Encoding": accept, "If-None-Match": tt.match})
				if r.StatusCode != tt.want {
					t.Errorf("status %d, want %d", r.StatusCode, tt.want)
				}
				if n := len(body(t, r)); (n == 0) != (tt.want == http.StatusNotModified) {
					t.Errorf("%d bytes of body", n)
				}
			})
		}
	}
	plain := get(t, "GET", "/main.js", nil).Header.Get("ETag")
	zipped := get(t, "GET", "/main.js", map[string]string{"Accept-Encoding": "gzip"}).Header.Get("ETag")
	if plain == zipped {
		t.Errorf("both encodings have the ETag %s", plain)
	}
}

func TestHandler_Refuses(t *testing.T) {
	for _, tt := range []struct {
		name, method, path string
		want               int
	}{
		{"post", "POST", "/", http.StatusMethodNotAllowed},
		{"unknown file", "GET", "/nothing.js", http.StatusNotFound},
		{"the manifest", "GET", "/manifest.json", http.StatusNotFound},
		{"a way out", "GET", "/../console.go", http.StatusNotFound},
		{"the compressed name", "GET", "/main.js.gz", http.StatusNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if r := get(t, tt.method, tt.path, nil); r.StatusCode != tt.want {
				t.Errorf("status %d, want %d", r.StatusCode, tt.want)
			}
		})
	}
}

func TestHandler_HeadHasNoBody(t *testing.T) {
	r := get(t, "HEAD", "/main.js", map[string]string{"Accept-Encoding": "gzip"})
	if r.StatusCode != http.StatusOK || len(body(t, r)) != 0 || r.Header.Get("Content-Length") == "" {
		t.Errorf("status %d, headers %v", r.StatusCode, r.Header)
	}
}

func TestPage_NamesOnlyItsOwnFiles(t *testing.T) {
	page := string(body(t, get(t, "GET", "/", nil)))
	refs := regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(page, -1)
	if len(refs) < 3 {
		t.Fatalf("found only %v in the page", refs)
	}
	for _, ref := range refs {
		if r := get(t, "GET", "/"+ref[1], nil); r.StatusCode != http.StatusOK {
			t.Errorf("the page refers to %q, which is answered with %d", ref[1], r.StatusCode)
		}
	}
}
