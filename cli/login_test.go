package cli_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-cloud/muster/cli"
	"github.com/muster-cloud/muster/registry/auth"
)

// secureWitness is a server with a cluster's certificate, which counts what is presented.
func secureWitness(t *testing.T) (url string, pin auth.Pin, presented *atomic.Int64) {
	t.Helper()
	now := time.Now()
	ca, err := auth.NewCA("c1", now)
	if err != nil {
		t.Fatal(err)
	}
	key, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(auth.Wish{Public: key.Public(), Identity: auth.ServerIdentity("c1"), Names: []string{"127.0.0.1"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	presented = new(atomic.Int64)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			presented.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"data": {"whoami": {"id": "k-1", "name": "me", "role": "VIEWER"}}}`)
	}))
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: append([][]byte{leaf.Raw}, ca.Chain()...), PrivateKey: key}}}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // a first handshake goes no further
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL, ca.Pin(), presented
}

func TestLogin_AsksToCompareThePinOfAStranger(t *testing.T) {
	for answer, trusted := range map[string]bool{"y\n": true, "YES\n": true, "\n": false, "n\n": false, "yep\n": false} {
		t.Run(strings.TrimSpace(answer), func(t *testing.T) {
			d := newDesk(t)
			url, pin, presented := secureWitness(t)
			screen, typed, read := keyboard(t, 200)
			// A terminal gives one line at a time: the second waits for the second question.
			if _, err := typed.WriteString(answer + newKey("k-1").Text() + "\n"); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			code := cli.Main(context.Background(), []string{"login", url}, cli.Std{
				Program: "muster", In: screen, Out: &out, Err: screen, LookupEnv: func(name string) (string, bool) { v, ok := d.env[name]; return v, ok },
			})
			shown := read()
			if (code == 0) != trusted || (presented.Load() > 0) != trusted || !strings.Contains(shown, "\n    "+pin.String()+"\n") {
				t.Fatalf("it ended with %d, presented %d keys and showed %q", code, presented.Load(), shown)
			}
			text, err := os.ReadFile(d.path(".config/muster/config.yaml"))
			if trusted != (err == nil) || trusted && !strings.Contains(string(text), "BEGIN CERTIFICATE") {
				t.Errorf("it kept %q, %v", text, err)
			}
			if !trusted {
				return
			}
			// From then on nothing is asked, and what was kept is what counts.
			if code, out, said := d.run("", nil, "whoami"); code != 0 || !strings.Contains(out, "from:     context 127.0.0.1") {
				t.Errorf("it ended with %d, printed %q and said %q", code, out, said)
			}
		})
	}
}

func TestLogin_ByAPinThatIsNotTheServers(t *testing.T) {
	d := newDesk(t)
	url, _, presented := secureWitness(t)
	_, other, _ := secureWitness(t)
	code, _, said := d.run(newKey("k-1").Text(), nil, "login", url, "--ca-pin", other.String())
	if code != 1 || presented.Load() != 0 || !strings.Contains(said, "what answers there is not of the cluster that is trusted here") {
		t.Errorf("it ended with %d, presented %d keys and said %q", code, presented.Load(), said)
	}
}
