package tooltest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/muster-cloud/muster"
)

// backend is a web server that counts its requests.
type backend struct {
	muster.RegisterInput
	served atomic.Int64
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		b.served.Add(1)
		_, _ = io.WriteString(w, "ok")
	}))
	t.Cleanup(s.Close)
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	port := int(at.Port())
	b.RegisterInput = muster.RegisterInput{Cluster: "prod", Protocol: "http", Service: "web", Address: at.Addr().String(), Port: &port}
	return b
}

// TestNginx_FollowsTheFeed has a real nginx balance between what is registered while that
// changes: no request of many fails, and each change takes effect.
func TestNginx_FollowsTheFeed(t *testing.T) {
	s := serve(t)
	first, second := newBackend(t), newBackend(t)
	s.register(first.RegisterInput)
	address := s.startNginx()

	ctx, cancel := context.WithCancel(t.Context())
	rendered := make(chan struct{})
	go func() {
		defer close(rendered)
		s.musterUntil(ctx, 0, "render", "-t", example("nginx.tmpl"), "-o", s.dir+"/upstreams.conf", "--watch", "--quiet", "100ms",
			"--check", "nginx -t -c "+s.dir+"/nginx.conf", "--reload", "nginx -s reload -c "+s.dir+"/nginx.conf")
	}()
	defer func() { cancel(); <-rendered }()

	ask := func() int {
		answer, err := http.Get("http://" + address)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	eventually(t, "nginx answers from the first", func() bool { return ask() == http.StatusOK })
	want := func() { // no failure from here on
		t.Helper()
		if status := ask(); status != http.StatusOK {
			t.Fatalf("a request got %d", status)
		}
	}
	s.register(second.RegisterInput)
	eventually(t, "the second gets requests", func() bool { want(); return second.served.Load() > 3 })
	if _, err := s.api.Deregister(t.Context(), muster.DeregisterInput{
		Cluster: "prod", Protocol: "http", Service: "web", Address: first.Address, Port: first.Port,
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first gets no more", func() bool {
		before := first.served.Load()
		for range 20 {
			want()
		}
		return first.served.Load() == before
	})
}

// startNginx starts a balancer of the upstream web in a process of its own.
func (s *site) startNginx() (address string) {
	s.t.Helper()
	address = freeAddress(s.t)
	if err := os.WriteFile(filepath.Join(s.dir, "upstreams.conf"), []byte("upstream web { server 127.0.0.1:9 down; }\n"), 0o644); err != nil {
		s.t.Fatal(err)
	}
	text := fmt.Sprintf(`daemon off; worker_processes 1; error_log %[1]s/error.log; pid %[1]s/nginx.pid;
events {}
http { access_log off; include %[1]s/up*.conf; server { listen %[2]s; location / { proxy_pass http://web; } } }
`, s.dir, address)
	if err := os.WriteFile(filepath.Join(s.dir, "nginx.conf"), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	nginx := exec.Command("nginx", "-c", s.dir+"/nginx.conf")
	if err := nginx.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = nginx.Process.Signal(os.Interrupt)
		if err := nginx.Wait(); err != nil {
			text, _ := os.ReadFile(s.dir + "/error.log")
			s.t.Errorf("nginx ended with %v: %s", err, strings.TrimSpace(string(text)))
		}
		http.DefaultClient.CloseIdleConnections()
	})
	listens(s.t, address)
	return address
}

// freeAddress is one of loopback where nobody listens now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// listens waits until somebody does.
func listens(t *testing.T, address string) {
	t.Helper()
	eventually(t, "somebody listens on "+address, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}
