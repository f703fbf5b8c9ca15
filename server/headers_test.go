package server_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/muster-cloud/muster/server"
)

// asks is a request to what a pattern of the mux stands for.
func asks(t *testing.T, s *server.Server, pattern, body string) *http.Request {
	t.Helper()
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		method, path = http.MethodGet, pattern
	}
	path = strings.NewReplacer("{$}", "", "{name}", "web", "{digest}", "sha256:"+strings.Repeat("0", 64)).Replace(path)
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr().String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// answer sends a request without following where the answer points to.
func answer(t *testing.T, r *http.Request) (*http.Response, string) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	// What a profile or an image goes on to say is not needed.
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// checkHeaders looks at what every answer has to say.
func checkHeaders(t *testing.T, h http.Header) {
	t.Helper()
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin"} {
		if got := h.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	policy := h.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("the policy %q lacks %s", policy, part)
		}
	}
	for _, name := range []string{"Access-Control-Allow-Origin", "Set-Cookie", "Server"} {
		if got := h.Get(name); got != "" {
			t.Errorf("%s is %q", name, got)
		}
	}
}

func TestRoutes_SayWhatTheirAnswersAre(t *testing.T) {
	s := open(t, server.Options{})
	defer run(t, s)()
	for _, pattern := range append(s.Patterns(), "GET /nothing", "DELETE /sign-in", "OPTIONS /images/{name}") {
		if pattern == "GET /debug/pprof/profile" || pattern == "GET /debug/pprof/trace" {
			pattern += "?seconds=1"
		}
		t.Run(pattern, func(t *testing.T) {
			response, body := answer(t, asks(t, s, pattern, ""))
			checkHeaders(t, response.Header)
			page := strings.HasPrefix(response.Request.URL.Path, "/playground")
			if kept := response.Header.Get("Cache-Control"); kept != "no-store" && !(page && kept == "no-cache") {
				t.Errorf("Cache-Control is %q", kept)
			}
			if body != "" && response.Header.Get("Content-Type") == "" {
				t.Error("it does not say what it is")
			}
			foreign := asks(t, s, pattern, "")
			foreign.Host = "evil.example"
			response, _ = answer(t, foreign)
			if checkHeaders(t, response.Header); response.StatusCode != http.StatusMisdirectedRequest || response.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("under another host's name it is %d, %q", response.StatusCode, response.Header.Get("Cache-Control"))
			}
		})
	}
}

func TestRoutes_KeysAreNotKept(t *testing.T) {
	s, admin := withKeys(t)
	post := func(pattern, body string) string {
		t.Helper()
		r := asks(t, s, pattern, body)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+admin)
		response, text := answer(t, r)
		if response.StatusCode != http.StatusOK || response.Header.Get("Cache-Control") != "no-store" || !strings.Contains(text, "muster_") {
			t.Errorf("%s: %d, %q, %s", pattern, response.StatusCode, response.Header.Get("Cache-Control"), text)
		}
		return text
	}
	post("POST /graphql", `{"query":"mutation { createAccessKey(input: {name: \"x\", role: VIEWER}) { text } }"}`)
	made := post("POST /graphql", `{"query":"mutation { createSignIn(input: {}) { path } }"}`)
	_, code, _ := strings.Cut(made, "#")
	code, _, _ = strings.Cut(code, `"`)
	post("POST /sign-in", `{"code":"`+code+`"}`)
}

func TestSignIn_Refuses(t *testing.T) {
	s, _ := withKeys(t)
	for _, test := range []struct {
		name, body string
		header     map[string]string
		status     int
	}{
		{"no code that there is", `{"code":"muster_sign-in_x"}`, nil, 401},
		{"no JSON", `code=x`, nil, 400},
		{"a form", `code=x`, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415},
		{"text", `{"code":"x"}`, map[string]string{"Content-Type": "text/plain"}, 415},
		{"another site", `{"code":"x"}`, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"another origin", `{"code":"x"}`, map[string]string{"Origin": "http://evil.example"}, 403},
		{"too long", `{"code":"` + strings.Repeat("x", 5000) + `"}`, nil, 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := asks(t, s, "POST /sign-in", test.body)
			r.Header.Set("Content-Type", "application/json")
			for name, value := range test.header {
				r.Header.Set(name, value)
			}
			if response, body := answer(t, r); response.StatusCode != test.status {
				t.Errorf("it is %d, not %d: %s", response.StatusCode, test.status, body)
			}
		})
	}
}

// withKeys runs a server that asks for keys until the test ends, and returns its ADMIN key.
func withKeys(t *testing.T) (s *server.Server, admin string) {
	t.Helper()
	dir := t.TempDir()
	s, err := server.Open(t.Context(), server.Options{DataDir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, s)
	t.Cleanup(func() {
		if err := errors.Join(stop(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "there is an ADMIN key", func() bool {
		text, err := os.ReadFile(server.AdminKeyFile(dir))
		admin = strings.TrimSpace(string(text))
		return err == nil
	})
	return s, admin
}
