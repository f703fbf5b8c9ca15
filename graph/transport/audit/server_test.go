package audit_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
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
	address := freeAddress(t)
	s := &server{
		t: t, http: "http://" + address + "/graphql", ws: "ws://" + address + "/graphql",
		args: append([]string{"server", "--keyless", "--listen", address, "--data-dir", filepath.Join(t.TempDir(), "data")}, args...),
	}
	var err error
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

// freeAddress is one of loopback that nobody listens on now, with a port below those
// that outgoing connections are given: a server that restarts needs it again.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
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
