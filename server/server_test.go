package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a server that closes with the test.
func open(t *testing.T, o server.Options) *server.Server {
	t.Helper()
	if o.DataDir == "" {
		o.DataDir = t.TempDir()
	}
	if o.Listen == "" {
		o.Listen, o.Keyless = "127.0.0.1:0", true
	}
	o.Logger = slog.New(slog.DiscardHandler)
	s, err := server.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// run serves until the returned function is called, which gives what Run returned.
func run(t *testing.T, s *server.Server) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(cancel)
	return func() error {
		cancel()
		return <-done
	}
}

// connect returns a client of the server whose connections end with the test.
func connect(t *testing.T, s *server.Server) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{URL: "http://" + s.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func register(t *testing.T, c *client.Client, addr string, port int) {
	t.Helper()
	_, err := c.RegisterNode(t.Context(), muster.RegisterNodeInput{
		ID: "n1", Hostname: "n1", Addr: addr, Port: port, Role: muster.Compute, CPUCount: 4, MemoryMB: 4096,
		Incarnation: 7, Images: []string{"minimal"},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestServer_ServesOnlyItsHosts(t *testing.T) {
	s := open(t, server.Options{AllowedHosts: []string{"registry.example", "fd00::7"}})
	defer run(t, s)()
	for _, test := range []struct {
		host   string
		status int
	}{
		{"localhost", 200},
		{"LOCALHOST:80", 200},
		{"127.0.0.1:9000", 200},
		{"[::1]", 200},
		{"[::1]:9000", 200},
		{"registry.example", 200},
		{"registry.example.:1", 200},
		{"[fd00::7]:9000", 200},
		{"evil.example", 421},
		{"registry.example.evil.example", 421},
		{"127.0.0.1.evil.example", 421},
		{"127.0.0.2", 421},
		{"localhost@evil.example", 400}, // net/http itself,
		{"", 421},
	} {
		t.Run(test.host, func(t *testing.T) {
			for _, path := range []string{"/", "/healthz", "/playground/", "/graphql?query={__typename}"} {
				if got := status(t, s.Addr(), path, test.host); got != test.status {
					t.Errorf("%s answers %d to the host %q, not %d", path, got, test.host, test.status)
				}
			}
		})
	}
}

// status makes one request with a Host header as it is and returns the answer's status.
func status(t *testing.T, addr net.Addr, path, host string) int {
	t.Helper()
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

func TestServer_RefusesConnectionsBeyondItsLimit(t *testing.T) {
	s := open(t, server.Options{MaxConnections: 2})
	defer run(t, s)()
	first, second := dial(t, s), dial(t, s)
	third := dial(t, s)
	answer, err := io.ReadAll(third)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(answer), "HTTP/1.1 503 ") || !strings.Contains(string(answer), "--max-connections") {
		t.Fatalf("the third connection got %q", answer)
	}
	for _, conn := range []net.Conn{first, second} {
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
			t.Fatalf("a connection within the limit got %q, %v", answer, err)
		}
	}
	// Their places are free again.
	eventually(t, "a place is free", func() bool {
		response, err := http.Get("http://" + s.Addr().String() + "/healthz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	http.DefaultClient.CloseIdleConnections()
}

func dial(t *testing.T, s *server.Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// eventually polls what another goroutine makes true soon.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

func TestOpen_TakesTheAddressBeforeTheData(t *testing.T) {
	first := open(t, server.Options{})
	dir := filepath.Join(t.TempDir(), "data")
	_, err := server.Open(t.Context(), server.Options{Keyless: true, DataDir: dir, Listen: first.Addr().String(), Logger: slog.New(slog.DiscardHandler)})
	if muster.CodeOf(err) != muster.Conflict || !strings.Contains(err.Error(), "the port is in use") {
		t.Fatalf("a second server on the port got %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the data directory was touched: %v", err)
	}
}

func TestOpen_GivesTheAddressBackWhenTheDataIsRefused(t *testing.T) {
	dir := t.TempDir()
	open(t, server.Options{DataDir: dir})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = server.Open(t.Context(), server.Options{Keyless: true, DataDir: dir, Listen: address, Logger: slog.New(slog.DiscardHandler)})
	if muster.CodeOf(err) != muster.Conflict {
		t.Fatalf("a second server on the data directory got %v", err)
	}
	again, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("the address was kept: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestServer_CloseStopsARunAndGivesAllBack(t *testing.T) {
	dir := t.TempDir()
	s := open(t, server.Options{DataDir: dir})
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	c := connect(t, s)
	register(t, c, "192.0.2.7", 8080)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Fatalf("Run returned %v", err)
	}
	// The next one on the same directory has what was committed.
	next := open(t, server.Options{DataDir: dir})
	defer run(t, next)()
	if n, err := connect(t, next).Node(t.Context(), "n1"); err != nil || n.Incarnation != 7 {
		t.Fatalf("after a restart the node is %+v, %v", n, err)
	}
}

func TestServer_StopEndsSubscriptionsFirst(t *testing.T) {
	s := open(t, server.Options{})
	stop := run(t, s)
	c := connect(t, s)
	synced, lost := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() {
		watched <- c.WatchHealth(ctx, nil, client.WatchOptions{
			OnDisconnect: func(err error, _ time.Duration) { lost <- err; cancel() },
		}, func(e client.Event) error {
			if e.Type == muster.EventSynced {
				close(synced)
			}
			return nil
		})
	}()
	<-synced
	if err := stop(); err != nil {
		t.Fatalf("Run returned %v", err)
	}
	if err := <-lost; !strings.Contains(err.Error(), "1001") {
		t.Fatalf("the subscription ended with %v, not with a farewell", err)
	}
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestServer_StopDoesNotWaitForConnectionsThatSaidNothing(t *testing.T) {
	s := open(t, server.Options{})
	stop := run(t, s)
	silent := dial(t, s)
	// The server has accepted it once it has answered a later one.
	if got := status(t, s.Addr(), "/healthz", "localhost"); got != http.StatusOK {
		t.Fatalf("it answers %d", got)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Fatal("a connection that said nothing got an answer")
	}
	if err := <-stopped; err != nil {
		t.Fatalf("Run returned %v", err)
	}
}

func TestServer_NudgesTheAgent(t *testing.T) {
	type call struct {
		method, path string
		body         map[string]any
	}
	calls := make(chan call, 1)
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := call{method: r.Method, path: r.URL.Path}
		if err := json.NewDecoder(r.Body).Decode(&got.body); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusAccepted)
		calls <- got
	}))
	defer agent.Close()
	s := open(t, server.Options{})
	defer run(t, s)()
	c := connect(t, s)
	at := agent.Listener.Addr().(*net.TCPAddr)
	register(t, c, at.IP.String(), at.Port)
	i, err := c.LaunchInstance(t.Context(), muster.LaunchInstanceInput{Type: muster.Nano})
	if err != nil {
		t.Fatal(err)
	}
	got := <-calls
	if got.method != http.MethodPost || got.path != "/instances/i-1/provision" {
		t.Errorf("the agent got %s %s", got.method, got.path)
	}
	if got.body["instance"] != "i-1" || got.body["incarnation"] != 7.0 || got.body["desiredRevision"] != float64(i.Revision) {
		t.Errorf("the agent got %v for revision %d", got.body, i.Revision)
	}
	eventually(t, "the nudge is counted", func() bool { return metric(t, s, "muster_server_nudges_total 1") })
	if !metric(t, s, `muster_registry_instances{status="PROVISIONING"} 1`) {
		t.Error("the instance is not counted by status")
	}
}

// metric reports whether the metrics have a line.
func metric(t *testing.T, s *server.Server, line string) bool {
	t.Helper()
	response, err := http.Get("http://" + s.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), "\n"+line+"\n")
}
