package audit_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli"
	"github.com/muster-cloud/muster/client"
)

// TestMain lets the tests run this binary as the program muster.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"muster": func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		os.Exit(cli.Main(ctx, os.Args[1:], cli.OS()))
	}})
}

// server is a real server in a process of its own.
type server struct {
	t       *testing.T
	args    []string
	http    string // its URLs
	ws      string
	api     *client.Client
	log     bytes.Buffer
	process *exec.Cmd
}

func serve(t *testing.T, args ...string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := &server{
		t: t, http: "http://" + address + "/graphql", ws: "ws://" + address + "/graphql",
		args: append([]string{"server", "--listen", address, "--data-dir", filepath.Join(t.TempDir(), "data")}, args...),
	}
	if s.api, err = client.New(client.Options{URL: "http://" + address}); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(func() {
		_ = s.api.Close()
		s.end(os.Kill)
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.log.String())
		}
	})
	return s
}

// start starts the process and waits until it is ready.
func (s *server) start() {
	s.t.Helper()
	s.process = exec.Command("muster", s.args...)
	s.process.Stdout, s.process.Stderr = &s.log, &s.log
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	ready := s.http[:len(s.http)-len("/graphql")] + "/readyz"
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if response, err := http.Get(ready); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
		}
	}
	s.t.Fatal("the server is not ready within 30 s")
}

func (s *server) end(how os.Signal) {
	_ = s.process.Process.Signal(how)
	_ = s.process.Wait()
}

// change makes changes of one node up to a revision, and returns the cursor of the first.
func (s *server) change(upTo int64) (first string) {
	s.t.Helper()
	info, err := s.api.ServerInfo(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if info.Revision == 0 {
		_, err := s.api.RegisterNode(s.t.Context(), muster.RegisterNodeInput{
			ID: "n1", Hostname: "n1", Addr: "192.0.2.7", Port: 8080, Role: muster.Compute, CPUCount: 4, MemoryMB: 4096, Incarnation: 1,
		})
		if err != nil {
			s.t.Fatal(err)
		}
		if info, err = s.api.ServerInfo(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
	for revision := info.Revision + 1; revision <= upTo; revision++ {
		if revision%2 == 0 {
			_, err = s.api.CordonNode(s.t.Context(), "n1", "")
		} else {
			_, err = s.api.UncordonNode(s.t.Context(), "n1")
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return info.Cursor
}
