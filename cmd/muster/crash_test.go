package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "github.com/mattn/go-sqlite3"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const (
	crashKills    = 20
	crashWriters  = 64
	crashWatchers = 4
	crashNodes    = 60
	crashSeed     = 20261129
)

// TestServer_KilledWhileItWrites kills the real server at seeded moments under
// 64 writers: what was acknowledged is there, what was repeated is there once,
// ids go on, and who watches misses and repeats nothing.
func TestServer_KilledWhileItWrites(t *testing.T) {
	s := newServer(t, "--unhealthy-after", "1h", "--prune-after", "2h")
	s.start()
	c := s.client()
	for k := range crashNodes {
		if _, err := c.RegisterNode(t.Context(), crashNode(k)); err != nil {
			t.Fatal(err)
		}
	}
	watched := s.watch(crashWatchers)
	stopWriting := make(chan struct{})
	acknowledged := s.write(stopWriting)
	moments := rand.New(rand.NewPCG(crashSeed, crashSeed))
	for range crashKills {
		time.Sleep(time.Duration(20+moments.IntN(130)) * time.Millisecond) // the moment is what the test is about
		s.kill()
		s.start()
	}
	close(stopWriting)
	responses := acknowledged()
	t.Logf("%d launches acknowledged over %d kills", len(responses), crashKills)
	checkAcknowledged(t, c, responses)
	last, err := c.LaunchInstance(t.Context(), crashLaunch("the last one"))
	if err != nil {
		t.Fatal(err)
	}
	if want := muster.InstanceIDOf(int64(len(responses) + 1)); last.ID != want {
		t.Errorf("the next id is %s, want %s", last.ID, want)
	}
	seen := watched(last.Revision)
	s.stop()
	want := logOf(t, s.dir)
	for k, got := range seen {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("watcher %d differs from the change table (-table +watched):\n%.2000s", k, diff)
		}
	}
}

func crashNode(k int) muster.RegisterNodeInput {
	return muster.RegisterNodeInput{
		ID: muster.NodeID(fmt.Sprintf("n%d", k)), Hostname: "h", Addr: "127.0.0.1", Port: 1, Role: muster.Compute,
		CPUCount: 1024, MemoryMB: 1 << 20, Incarnation: 1, Images: []string{"minimal"},
	}
}

func crashLaunch(requestID string) muster.LaunchInstanceInput {
	return muster.LaunchInstanceInput{
		Type: muster.Nano, Image: "minimal", Name: "w", RequestID: requestID,
		Labels: muster.Map{"request": requestID}, Command: []string{"/bin/true", requestID},
	}
}

// write launches from many callers until it is told to stop, each request until
// it is acknowledged; the function it returns waits and gives the responses.
func (s *server) write(stop chan struct{}) func() map[string]*client.Instance {
	var mu sync.Mutex
	var wait sync.WaitGroup
	responses := map[string]*client.Instance{}
	for k := range crashWriters {
		wait.Go(func() {
			c := s.client()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("%d-%d", k, n)
				i := s.insist(c, id)
				mu.Lock()
				responses[id] = i
				mu.Unlock()
			}
		})
	}
	return func() map[string]*client.Instance {
		wait.Wait()
		return responses
	}
}

// insist repeats one launch until it is acknowledged.
func (s *server) insist(c *client.Client, requestID string) *client.Instance {
	for s.t.Context().Err() == nil {
		i, err := c.LaunchInstance(s.t.Context(), crashLaunch(requestID))
		if err == nil {
			return i
		}
		if muster.CodeOf(err) != muster.Unavailable {
			s.t.Errorf("launch %s: %v", requestID, err)
			return nil
		}
	}
	return nil
}

// checkAcknowledged asks for each launch again by its requestId: the very same
// object answers, field by field, and there are no others.
func checkAcknowledged(t *testing.T, c *client.Client, responses map[string]*client.Instance) {
	t.Helper()
	total := 0
	ids := map[muster.InstanceID]bool{}
	for i, err := range c.AllInstances(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		ids[i.ID] = true
		total++
	}
	if total != len(responses) {
		t.Errorf("%d instances for %d acknowledged requests", total, len(responses))
	}
	if !ids["i-1"] || !ids[muster.InstanceIDOf(int64(total))] {
		t.Errorf("the ids have gaps: i-1 or i-%d is missing", total)
	}
	for id, before := range responses {
		again, err := c.LaunchInstance(t.Context(), crashLaunch(id))
		if err != nil {
			t.Fatalf("request %s again: %v", id, err)
		}
		if diff := cmp.Diff(before, again); diff != "" {
			t.Fatalf("request %s was answered otherwise than before (-before +again):\n%s", id, diff)
		}
	}
}

// seenChange is what a watcher and the change table both tell.
type seenChange struct {
	Revision         int64
	Object, From, To string
}

// watch follows the instances from several clients; the function it returns
// waits until each has seen a revision and gives what each has seen.
func (s *server) watch(clients int) func(until int64) [][]seenChange {
	info, err := s.client().ServerInfo(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	seen := make([][]seenChange, clients)
	var mu sync.Mutex
	var wait sync.WaitGroup
	for k := range clients {
		wait.Go(func() {
			err := s.client().WatchInstances(ctx, nil, client.WatchOptions{Since: info.Cursor}, func(e client.Event) error {
				mu.Lock()
				defer mu.Unlock()
				if e.Type == muster.EventChange {
					seen[k] = append(seen[k], seenChange{e.Revision, string(e.Instance.ID), e.PreviousStatus, e.Status})
				}
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				s.t.Errorf("watcher %d: %v", k, err)
			}
		})
	}
	caughtUp := func(revision int64) bool {
		mu.Lock()
		defer mu.Unlock()
		return !slices.ContainsFunc(seen, func(one []seenChange) bool {
			return len(one) == 0 || one[len(one)-1].Revision < revision
		})
	}
	return func(revision int64) [][]seenChange {
		for deadline := time.Now().Add(30 * time.Second); !caughtUp(revision) && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
		wait.Wait()
		return seen
	}
}

// logOf reads the instances' changes from the database itself.
func logOf(t *testing.T, dir string) []seenChange {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "muster.db")+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query("SELECT revision, object_id, previous_status, status FROM changes WHERE kind = 'INSTANCE' ORDER BY revision")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out []seenChange
	for rows.Next() {
		var c seenChange
		if err := rows.Scan(&c.Revision, &c.Object, &c.From, &c.To); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// server is a real muster server in a process of its own.
type server struct {
	t       *testing.T
	dir     string
	url     string
	args    []string
	process *exec.Cmd
	log     *os.File
}

func newServer(t *testing.T, args ...string) *server {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort("127.0.0.1", port)
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(t.TempDir(), "server.log"))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: dir, url: "http://" + addr, log: log, args: append([]string{"server", "--keyless", "--data-dir", dir, "--listen", addr}, args...)}
	t.Cleanup(func() {
		if s.process != nil {
			s.kill()
		}
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("the server's log ends with:\n%s", b[max(0, len(b)-4000):])
		}
		log.Close()
	})
	return s
}

func (s *server) client() *client.Client {
	c, err := client.New(client.Options{URL: s.url, Timeout: 5 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// start starts the server and waits until it is ready.
func (s *server) start() {
	s.t.Helper()
	s.process = exec.Command("muster", s.args...)
	s.process.Stdout, s.process.Stderr = s.log, s.log
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if s.answers("/readyz") {
			return
		}
	}
	s.t.Fatalf("the server at %s is not ready within 20 s", s.url)
}

func (s *server) answers(path string) bool {
	response, err := http.Get(s.url + path)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode == http.StatusOK
}

func (s *server) kill() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	s.process = nil
}

// stop ends the server as Ctrl-C does.
func (s *server) stop() {
	s.t.Helper()
	if err := s.process.Process.Signal(os.Interrupt); err != nil {
		s.t.Fatal(err)
	}
	if err := s.process.Wait(); err != nil {
		s.t.Errorf("the server ended with %v", err)
	}
	s.process = nil
}
