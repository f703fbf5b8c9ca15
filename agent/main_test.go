package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

const secret = "do-not-log-this"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a host with a registry above it; agents come and go.
type world struct {
	t     *testing.T
	dir   string
	host  *drivertest.Host
	cloud *cloud
	boot  string
	log   logs
	wrap  func(driver.Driver) driver.Driver // nil: none

	images      agent.Images       // nil: none
	credentials *agent.Credentials // nil: it has not joined
	registry    agent.Registry     // nil: the cloud
	router      agent.Router       // nil: none
	deploy      deploy.Options
}

// logs collects what agents log.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// play runs a test in a bubble with a fake clock and judges it at the end.
func play(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, dir: dir, host: drivertest.NewHost(), cloud: newCloud(), boot: "boot-1"}
		t.Cleanup(w.host.Close)
		test(t, w)
		for _, fault := range w.cloud.faults {
			t.Error(fault)
		}
		if strings.Contains(w.log.String(), secret) {
			t.Error("an environment was logged")
		}
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
}

// running is an agent at work.
type running struct {
	*agent.Agent
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

// quiet is a listener that nobody reaches.
type quiet struct{ closed chan struct{} }

func (q quiet) Accept() (net.Conn, error) { <-q.closed; return nil, net.ErrClosed }
func (q quiet) Close() error              { close(q.closed); return nil }
func (q quiet) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 8080} }

func (w *world) start() *running {
	w.t.Helper()
	var machines driver.Driver = drivertest.NewFake(w.host)
	if w.wrap != nil {
		machines = w.wrap(machines)
	}
	registry := w.registry
	if registry == nil {
		registry = w.cloud
	}
	a, err := agent.New(agent.Options{
		Driver: machines, Registry: registry, Credentials: w.credentials, Images: w.images, Router: w.router, Deploy: w.deploy, StateDir: w.dir, ID: "node-a", BootID: w.boot, CPUs: 4, MemoryMB: 4096,
		Listener: onceClosed(quiet{make(chan struct{})}), Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	r := begin(w.t, a)
	w.t.Cleanup(r.stop)
	synctest.Wait()
	return r
}

// onceClosed lets both the server and the agent close a listener.
func onceClosed(l net.Listener) net.Listener {
	return &onceCloser{Listener: l, close: sync.OnceValue(l.Close)}
}

type onceCloser struct {
	net.Listener
	close func() error
}

func (o *onceCloser) Close() error { return o.close() }

// stop ends the agent as a signal would.
func (r *running) stop() {
	r.cancel()
	<-r.ended
}

// pass lets time go by.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// nudgeNow tells of an instance what holds now.
func (r *running) nudgeNow(w *world, id muster.InstanceID) int {
	revision, incarnation := w.cloud.now()
	return r.nudge(id, revision, incarnation)
}

// nudge calls the agent's port as a registry does.
func (r *running) nudge(id muster.InstanceID, revision, incarnation int64) int {
	body := fmt.Sprintf(`{"instance":%q,"desiredRevision":%d,"incarnation":%d}`, id, revision, incarnation)
	return r.post(id, body)
}

func (r *running) post(id muster.InstanceID, body string) int {
	rec := httptest.NewRecorder()
	r.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/instances/"+string(id)+"/provision", strings.NewReader(body)))
	synctest.Wait()
	return rec.Code
}

func (w *world) want(id muster.InstanceID, status muster.InstanceStatus) {
	w.t.Helper()
	if got := w.cloud.status(id); got != status {
		w.t.Errorf("%s is %s (%s), want %s", id, got, w.cloud.seen(id).Reason, status)
	}
}

// machine is the driver's view of one.
func (w *world) machine(name string) *driver.Status {
	w.t.Helper()
	all, err := drivertest.NewFake(w.host).List(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, m := range all {
		if m.Spec.Machine == name {
			return &m
		}
	}
	return nil
}

// begin runs an agent.
func begin(t *testing.T, a *agent.Agent) *running {
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{Agent: a, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = a.Run(ctx)
	}()
	return r
}

// eventually polls outside of a bubble.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not come about in 10 s")
		}
		time.Sleep(time.Millisecond)
	}
}
