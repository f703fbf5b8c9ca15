package check_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/check"
	"github.com/muster-cloud/muster/agent/driver"
)

func serve(t *testing.T, server *httptest.Server) check.Probe {
	t.Helper()
	t.Cleanup(server.Close)
	at := netip.MustParseAddrPort(server.Listener.Addr().String())
	return check.Probe{Addr: at.Addr(), Port: int(at.Port())}
}

func handler(t *testing.T) http.Handler {
	t.Helper()
	mux := http.NewServeMux()
	hanging := make(chan struct{})
	t.Cleanup(func() { close(hanging) })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "all is well\x00\xff\n") })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/bad", http.StatusFound) })
	mux.HandleFunc("/hangs", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hanging:
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "half")
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := fmt.Fprint(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	})
	return mux
}

func TestProbe_HTTP(t *testing.T) {
	plain := serve(t, httptest.NewServer(handler(t)))
	secured := httptest.NewUnstartedServer(handler(t))
	secured.Config.ErrorLog = log.New(io.Discard, "", 0)
	secured.StartTLS()
	tls := serve(t, secured)
	for name, c := range map[string]struct {
		probe  check.Probe
		check  muster.Check
		status muster.CheckStatus
		output string
	}{
		"well":                    {plain, muster.Check{}, muster.CheckOK, "200 OK in "},
		"with its text":           {plain, muster.Check{Body: "is well"}, muster.CheckOK, "all is well �"},
		"without its text":        {plain, muster.Check{Body: "is bad"}, muster.CheckCritical, `"is bad" is not in the answer: 200 OK`},
		"bad":                     {plain, muster.Check{Path: "/bad"}, muster.CheckCritical, "500 Internal Server Error in "},
		"bad as expected":         {plain, muster.Check{Path: "/bad", Status: 500}, muster.CheckOK, "500 "},
		"well where bad expected": {plain, muster.Check{Status: 500}, muster.CheckCritical, "not 500 but 200 OK"},
		"moved, and not followed": {plain, muster.Check{Path: "/moved"}, muster.CheckOK, "302 Found"},
		"hanging":                 {plain, muster.Check{Path: "/hangs", Timeout: 100 * time.Millisecond}, muster.CheckCritical, "it took longer than 100ms"},
		"cut":                     {plain, muster.Check{Path: "/cut"}, muster.CheckCritical, "200 OK, and then: unexpected EOF"},
		"endless":                 {plain, muster.Check{Path: "/endless"}, muster.CheckOK, "200 OK in "},
		"by TLS":                  {tls, muster.Check{TLS: true, SkipVerify: true}, muster.CheckOK, "200 OK in "},
		"by TLS, verified":        {tls, muster.Check{TLS: true}, muster.CheckCritical, "certificate"},
		"TLS where none is":       {plain, muster.Check{TLS: true, SkipVerify: true}, muster.CheckCritical, "does not look like a TLS handshake"},
		"none where TLS is":       {tls, muster.Check{}, muster.CheckCritical, "400 Bad Request"},
		"nobody there":            {plain, muster.Check{Port: 1}, muster.CheckCritical, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			c.check.Kind = muster.HTTPCheck
			o := c.probe.Run(t.Context(), c.check)
			if o.Status != c.status || !strings.Contains(o.Output, c.output) || !utf8.ValidString(o.Output) || len(o.Output) > muster.MaxOutputBytes {
				t.Errorf("%s with %q, want %s with %q", o.Status, o.Output, c.status, c.output)
			}
		})
	}
}

func TestProbe_TCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	there := check.Probe{Port: listener.Addr().(*net.TCPAddr).Port}
	nowhere := there
	nowhere.Dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("%w: k-i-1-1", driver.ErrNotFound)
	}
	stopped := there
	stopped.Dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, muster.Errorf(muster.Conflict, "the instance does not run")
	}
	deaf := there
	deaf.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, c := range map[string]struct {
		probe  check.Probe
		port   int
		status muster.CheckStatus
		output string
	}{
		"somebody listens":  {there, 0, muster.CheckOK, "connected to 127.0.0.1:"},
		"nobody listens":    {there, 1, muster.CheckCritical, "connection refused"},
		"nobody could look": {nowhere, 0, muster.CheckUnknown, "no such machine: k-i-1-1"},
		"a stopped one":     {stopped, 0, muster.CheckUnknown, "the instance does not run"},
		"no answer":         {deaf, 0, muster.CheckCritical, "it took longer than 50ms"},
	} {
		o := c.probe.Run(t.Context(), muster.Check{Kind: muster.TCPCheck, Port: c.port, Timeout: 50 * time.Millisecond})
		if o.Status != c.status || !strings.Contains(o.Output, c.output) {
			t.Errorf("%s: %s with %q, want %s with %q", name, o.Status, o.Output, c.status, c.output)
		}
	}
}

// command is a way to execute that prints and ends so.
func command(exit driver.Exit, output string, err error) check.Probe {
	return check.Probe{Exec: func(_ context.Context, _ []string, out io.Writer) (driver.Exit, error) {
		for _, part := range strings.SplitAfter(output, " ") {
			if _, err := io.WriteString(out, part); err != nil {
				return driver.Exit{}, err
			}
		}
		return exit, err
	}}
}

func TestProbe_Exec(t *testing.T) {
	long := strings.Repeat("é", 5000) + " " + strings.Repeat("x", 5000) + " the end"
	for name, c := range map[string]struct {
		probe  check.Probe
		status muster.CheckStatus
		output string
	}{
		"0":              {command(driver.Exit{}, "fine", nil), muster.CheckOK, "fine"},
		"1":              {command(driver.Exit{Code: 1}, "slow", nil), muster.CheckWarning, "slow"},
		"2":              {command(driver.Exit{Code: 2}, "down", nil), muster.CheckCritical, "down"},
		"3":              {command(driver.Exit{Code: 3}, "what?", nil), muster.CheckUnknown, "exited with status 3\nwhat?"},
		"127":            {command(driver.Exit{Code: 127}, "sh: x: not found", nil), muster.CheckUnknown, "exited with status 127\nsh: x: not found"},
		"a signal":       {command(driver.Exit{Code: 137, Signal: 9}, "", nil), muster.CheckUnknown, "killed by signal 9\n"},
		"no such":        {command(driver.Exit{Failure: "there is no program"}, "", nil), muster.CheckUnknown, "could not start: there is no program\n"},
		"no machine":     {command(driver.Exit{}, "", driver.ErrNotFound), muster.CheckUnknown, "no such machine\n"},
		"no way":         {check.Probe{}, muster.CheckUnknown, "commands cannot be run here"},
		"much":           {command(driver.Exit{}, long, nil), muster.CheckOK, strings.Repeat("x", muster.MaxOutputBytes-8) + " the end"},
		"bytes":          {command(driver.Exit{}, "a\x00b\xffc", nil), muster.CheckOK, "a�b�c"},
		"half of a rune": {command(driver.Exit{}, strings.Repeat("é", 5000), nil), muster.CheckOK, strings.Repeat("é", muster.MaxOutputBytes/2)},
	} {
		o := c.probe.Run(t.Context(), muster.Check{Kind: muster.ExecCheck, Command: []string{"x"}})
		if o.Status != c.status || o.Output != c.output {
			t.Errorf("%s: %s with %.80q, want %s with %.80q", name, o.Status, o.Output, c.status, c.output)
		}
	}
}

func TestProbe_Tries(t *testing.T) {
	calls := 0
	probe := check.Probe{Exec: func(context.Context, []string, io.Writer) (driver.Exit, error) {
		if calls++; calls%4 == 0 {
			return driver.Exit{}, nil
		}
		return driver.Exit{Code: 2}, nil
	}}
	for _, c := range []struct {
		tries, calls int
		status       muster.CheckStatus
	}{{1, 1, muster.CheckCritical}, {2, 3, muster.CheckCritical}, {5, 4, muster.CheckOK}} {
		o := probe.Run(t.Context(), muster.Check{Kind: muster.ExecCheck, Command: []string{"x"}, Tries: c.tries, Pause: time.Millisecond})
		if o.Status != c.status || calls != c.calls {
			t.Errorf("with %d tries: %s after %d calls in all, want %s after %d", c.tries, o.Status, calls, c.status, c.calls)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	probe.Exec = func(context.Context, []string, io.Writer) (driver.Exit, error) {
		cancel()
		return driver.Exit{}, ctx.Err()
	}
	if o := probe.Run(ctx, muster.Check{Kind: muster.ExecCheck, Command: []string{"x"}, Tries: 9}); o.Status != muster.CheckUnknown || !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("given up: %+v", o)
	}
	if o := probe.Run(t.Context(), muster.Check{Kind: muster.TTLCheck}); o.Status != muster.CheckUnknown {
		t.Errorf("a TTL check was run: %+v", o)
	}
}
