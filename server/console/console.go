package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Monaco writes style elements and style attributes as it runs; nothing else is
// let off the page's own origin.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; worker-src 'self' blob:; connect-src 'self'; " +
	"style-src 'self' 'unsafe-inline'; font-src 'self' data:; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed assets/*.gz
var assets embed.FS

// asset is one file of the page, compressed.
type asset struct {
	contentType string
	gzipped     []byte
	sum         string
}

// Handler serves the page at "/" and its files beside it, to GET and HEAD; mount
// it with http.StripPrefix. It answers with the compressed bytes as they are
// embedded to whoever accepts gzip, and 304 to whoever has them already. The page
// expects the API at ../graphql.
func Handler() http.Handler {
	files := load()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setPolicy(w.Header())
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the console is only read: use GET, or POST to /graphql", http.StatusMethodNotAllowed)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, "/")
		if name == "" {
			name = "index.html"
		}
		file, ok := files[name]
		if !ok {
			http.Error(w, "the console has no such file: its page is index.html", http.StatusNotFound)
			return
		}
		file.serve(w, r)
	})
}

// load reads the embedded files. They are part of the program: a failure is a
// broken build, not a condition.
func load() map[string]asset {
	entries, err := assets.ReadDir("assets")
	if err != nil {
		panic("console: " + err.Error())
	}
	files := make(map[string]asset, len(entries))
	for _, e := range entries {
		data, err := assets.ReadFile("assets/" + e.Name())
		if err != nil {
			panic("console: " + err.Error())
		}
		name := strings.TrimSuffix(e.Name(), ".gz")
		sum := sha256.Sum256(data)
		files[name] = asset{contentType(name), data, hex.EncodeToString(sum[:12])}
	}
	return files
}

func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".ttf":
		return "font/ttf"
	default:
		return "text/plain; charset=utf-8"
	}
}

func setPolicy(h http.Header) {
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
}

func (a asset) serve(w http.ResponseWriter, r *http.Request) {
	compressed := acceptsGzip(r.Header.Values("Accept-Encoding"))
	etag := `"` + a.sum + `"`
	if compressed {
		etag = `"` + a.sum + `-gzip"`
	}
	h := w.Header()
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", etag)
	h.Set("Cache-Control", "no-cache")
	if has(r.Header.Values("If-None-Match"), etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", a.contentType)
	if compressed {
		h.Set("Content-Encoding", "gzip")
		h.Set("Content-Length", strconv.Itoa(len(a.gzipped)))
	}
	if r.Method == http.MethodHead {
		return
	}
	a.write(w, compressed)
}

// write sends the content; an error is the reader's going away, which is
// theirs to know.
func (a asset) write(w io.Writer, compressed bool) {
	if compressed {
		_, _ = w.Write(a.gzipped)
		return
	}
	plain, err := gzip.NewReader(bytes.NewReader(a.gzipped))
	if err != nil {
		panic("console: " + err.Error())
	}
	_, _ = io.Copy(w, plain)
}

// acceptsGzip tells whether an Accept-Encoding names gzip, or anything, with a
// quality that is not zero.
func acceptsGzip(headers []string) bool {
	best := false
	for _, part := range members(headers) {
		coding, params, _ := strings.Cut(part, ";")
		coding = strings.ToLower(strings.TrimSpace(coding))
		key, value, _ := strings.Cut(strings.TrimSpace(params), "=")
		q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		wanted := !strings.EqualFold(strings.TrimSpace(key), "q") || err != nil || q > 0
		if coding == "gzip" || coding == "x-gzip" {
			return wanted
		}
		best = best || (coding == "*" && wanted)
	}
	return best
}

// has tells whether an If-None-Match names etag.
func has(headers []string, etag string) bool {
	return slices.ContainsFunc(members(headers), func(tag string) bool {
		return tag == "*" || strings.TrimPrefix(tag, "W/") == etag
	})
}

// members splits the values of a list header.
func members(headers []string) []string {
	parts := strings.Split(strings.Join(headers, ","), ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
