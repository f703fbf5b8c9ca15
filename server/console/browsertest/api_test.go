package browsertest_test

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/server"
)

// site is a real server, and all that it logged.
type site struct {
	t    *testing.T
	addr string
	dir  string
	log  *journalLog
}

// journalLog keeps what a server logs, at every level.
type journalLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *journalLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *journalLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serve runs a server until the test ends.
func serve(t *testing.T, o server.Options) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), log: &journalLog{}}
	o.DataDir, o.Listen = s.dir, "127.0.0.1:0"
	o.Logger = slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	running, err := server.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- running.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := running.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	s.addr = running.Addr().String()
	return s
}

// adminKey waits for the key of the first start.
func (s *site) adminKey() string {
	s.t.Helper()
	path, key := server.AdminKeyFile(s.dir), ""
	eventually(s.t, "there is a "+path, func() bool {
		text, err := os.ReadFile(path)
		key = strings.TrimSpace(string(text))
		return err == nil
	})
	return key
}

// eventually polls what another process makes true soon.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(pollTime); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// as is a client that presents a key; "" presents none.
func (s *site) as(key string) *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{URL: "http://" + s.addr, Key: key})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// register announces a node, as its agent would.
func (s *site) register(key string, id muster.NodeID) {
	s.t.Helper()
	_, err := s.as(key).RegisterNode(s.t.Context(), muster.RegisterNodeInput{
		ID: id, Hostname: string(id), Addr: "127.0.0.1", Port: 8080, Role: muster.Compute,
		CPUCount: 4, MemoryMB: 4096, Incarnation: 1,
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// create makes an access key.
func (s *site) create(admin, name string, role muster.Role) string {
	s.t.Helper()
	made, err := s.as(admin).CreateAccessKey(s.t.Context(), muster.CreateAccessKeyInput{Name: name, Role: role})
	if err != nil || made.Text == nil {
		s.t.Fatalf("create a key: %v, %v", made, err)
	}
	return *made.Text
}

// link makes a link that signs its holder in.
func (s *site) link(key string) string {
	s.t.Helper()
	made, err := s.as(key).CreateSignIn(s.t.Context(), time.Minute)
	if err != nil {
		s.t.Fatal(err)
	}
	return "http://" + s.addr + made.Path
}
