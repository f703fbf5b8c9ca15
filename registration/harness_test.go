package registration_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

// childEnv has the directory and the address of a server that a test runs as a process of
// its own, to kill it.
const childEnv = "MUSTER_TEST_NATS"

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		serve(child)
		return
	}
	if file := os.Getenv(configEnv); file != "" {
		serveConfig(file)
		return
	}
	signal.Ignore(syscall.SIGXFSZ) // what comes of a file that got too large is an error
	goleak.VerifyTestMain(m)
}

// serve runs a server until it is killed, or nobody reads what it says any more.
func serve(child string) {
	dir, listen, _ := strings.Cut(child, "|")
	e, err := registration.NewEmbedded(registration.EmbeddedOptions{Dir: dir, Listen: listen, Token: "token", Logger: quiet()})
	if err == nil {
		err = e.Heal(context.Background())
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println(e.Addr())
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// virtually runs a test in virtual time. The NATS client keeps timers in a pool of the
// process, and one that another test's clock had made must not be in it: two collections empty it.
func virtually(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	empty := func() {
		runtime.GC()
		runtime.GC()
	}
	empty()
	defer empty()
	synctest.Test(t, f)
}

// quiet is a log for what is meant to fail.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// embedded starts a server that ends with the test.
func embedded(t testing.TB, opts registration.EmbeddedOptions) *registration.Embedded {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	if opts.Logger == nil {
		opts.Logger = quiet()
	}
	e, err := registration.NewEmbedded(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	if err := e.Heal(context.Background()); err != nil {
		t.Fatal(err)
	}
	return e
}

// connect connects for as long as the test runs.
func connect(t testing.TB, opts registration.ConnectOptions) *registration.Conn {
	t.Helper()
	opts.Logger = quiet()
	conn, err := registration.Connect(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// stream makes the feed's stream on a server of its own.
func stream(t testing.TB, opts registration.StreamOptions) (*registration.Stream, *registration.Conn) {
	t.Helper()
	conn := connect(t, registration.ConnectOptions{Embedded: embedded(t, registration.EmbeddedOptions{})})
	opts.Logger = quiet()
	s := registration.NewStream(conn, opts)
	if repairs, err := s.Ensure(t.Context()); err != nil || len(repairs) != 1 {
		t.Fatal(repairs, err)
	}
	return s, conn
}

// running runs f until the test ends, or until the returned function is called.
func running(t testing.TB, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

func entry(service, address string, port int, ttl time.Duration) *muster.Registration {
	r := &muster.Registration{Cluster: "prod", Protocol: "http", Service: service, Address: address, Priority: 100}
	if port != 0 {
		r.Port = &port
	}
	if ttl != 0 {
		r.TTL = &ttl
	}
	return r
}

// ended is a context that has ended: what waits for it only looks.
func ended(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
