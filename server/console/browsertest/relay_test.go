package browsertest_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// rebinder is an address at which an attacker's page is, and then another server: what a
// name is that resolves anew.
type rebinder struct {
	addr string

	mu   sync.Mutex
	to   string
	open []net.Conn
}

// point sends connections elsewhere from now on, and ends those that there are: a browser
// opens more than it needs.
func (r *rebinder) point(addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = addr
	for _, conn := range r.open {
		_ = conn.Close()
	}
	r.open = nil
}

// take remembers a connection, and returns where it leads.
func (r *rebinder) take(conn net.Conn) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = append(r.open, conn)
	return r.to
}

func newRebinder(t *testing.T, addr string) *rebinder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rebinder{addr: l.Addr().String(), to: addr}
	var carrying sync.WaitGroup
	carrying.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			carrying.Go(func() { carry(conn, r.take(conn)) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.point("")
		carrying.Wait()
	})
	return r
}

// carry copies between a connection and an address until either side ends.
func carry(conn net.Conn, addr string) {
	defer conn.Close()
	other, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer other.Close()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(conn, other)
		_ = conn.Close()
	})
	_, _ = io.Copy(other, conn)
	_ = other.Close()
	back.Wait()
}

// attacker serves an empty page, at /sandbox one that has no origin, over a connection for each request, so that the next one
// goes to where the name leads then.
func attacker(t *testing.T, secure bool) (addr string) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sandbox" {
			w.Header().Set("Content-Security-Policy", "sandbox allow-scripts") // the origin is null
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, `<!doctype html><link rel="icon" href="data:,"><title>a page</title><body>`)
	}))
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// port is that of an address.
func port(addr string) string { return addr[strings.LastIndex(addr, ":"):] }
