package registration_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

func TestEmbedded_OpensNoPortUnlessAsked(t *testing.T) {
	e := embedded(t, registration.EmbeddedOptions{})
	if e.Addr() != "" {
		t.Errorf("it listens on %s", e.Addr())
	}
}

func TestEmbedded_RefusesToBeOpenToEverybody(t *testing.T) {
	for _, c := range []struct {
		name string
		opts registration.EmbeddedOptions
		ok   bool
	}{
		{"not listening", registration.EmbeddedOptions{}, true},
		{"no secret", registration.EmbeddedOptions{Listen: "127.0.0.1:0"}, false},
		{"no port", registration.EmbeddedOptions{Listen: "127.0.0.1", Token: "x"}, false},
		{"port beyond", registration.EmbeddedOptions{Listen: "127.0.0.1:70000", Token: "x"}, false},
		{"user without a password", registration.EmbeddedOptions{Listen: "127.0.0.1:0", Users: map[string]string{"a": ""}}, false},
		{"token", registration.EmbeddedOptions{Listen: "127.0.0.1:0", Token: "x"}, true},
		{"users", registration.EmbeddedOptions{Listen: "127.0.0.1:0", Users: map[string]string{"a": "b"}}, true},
	} {
		if err := c.opts.Validate(); (err == nil) != c.ok || err != nil && muster.CodeOf(err) != muster.Invalid {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}

func TestEmbedded_AdmitsWhoKnowsASecret(t *testing.T) {
	e := embedded(t, registration.EmbeddedOptions{Listen: "127.0.0.1:0", Token: "sesame", Users: map[string]string{"ccm": "pw"}})
	for _, c := range []struct {
		name string
		opt  nats.Option
		ok   bool
	}{
		{"nobody", nats.Name("x"), false},
		{"another token", nats.Token("sesam"), false},
		{"the token", nats.Token("sesame"), true},
		{"user", nats.UserInfo("ccm", "pw"), true},
		{"user with another password", nats.UserInfo("ccm", "sesame"), false},
		{"another user", nats.UserInfo("root", "pw"), false},
		{"user without a name", nats.UserInfo("", ""), false},
	} {
		conn, err := nats.Connect("nats://"+e.Addr(), c.opt)
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v", c.name, err)
		}
		if conn != nil {
			conn.Close()
		}
	}
}

// What others wrote is nowhere else.
func TestEmbedded_SyncsWhatOthersWrite(t *testing.T) {
	for listen, want := range map[string]bool{"": false, "127.0.0.1:0": true} {
		if e := embedded(t, registration.EmbeddedOptions{Listen: listen, Token: "x"}); e.SyncsAlways() != want {
			t.Errorf("listening on %q it syncs always: %t", listen, !want)
		}
	}
}

func TestEmbedded_SaysWhyItCannotStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nats")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := starting(t, registration.EmbeddedOptions{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "JetStream") {
		t.Errorf("got %v", err)
	}
	used := embedded(t, registration.EmbeddedOptions{Listen: "127.0.0.1:0", Token: "x"})
	err = starting(t, registration.EmbeddedOptions{Dir: t.TempDir(), Listen: used.Addr(), Token: "x"})
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
}

func TestEmbedded_KeepsWhatItHad(t *testing.T) {
	dir := t.TempDir()
	r := entry("web", "10.0.0.5", 80, time.Hour)
	for round := range 3 {
		e := embedded(t, registration.EmbeddedOptions{Dir: dir})
		conn := connect(t, registration.ConnectOptions{Embedded: e})
		s := registration.NewStream(conn, registration.StreamOptions{Logger: quiet()})
		repairs, err := s.Ensure(t.Context())
		if err != nil || (len(repairs) == 1) != (round == 0) {
			t.Fatal(repairs, err)
		}
		pub := registration.NewJetStream(s, "uid")
		last, err := pub.Last(t.Context(), registration.Subject(r))
		if err != nil || (last == nil) != (round == 0) || last != nil && last.Sequence != uint64(round) {
			t.Fatalf("round %d: last %v, %v", round, last, err)
		}
		if _, err := pub.Publish(t.Context(), r, uint64(round)); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEmbedded_CloseTwiceAndAfterUse(t *testing.T) {
	e := embedded(t, registration.EmbeddedOptions{})
	for range 2 {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := e.InProcessConn(); err == nil {
		t.Error("a stopped server takes connections")
	}
	if err := e.Heal(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := e.InProcessConn(); err == nil {
		t.Error("a closed server was started again")
	}
}

// starting returns why a server does not start.
func starting(t testing.TB, opts registration.EmbeddedOptions) error {
	t.Helper()
	opts.Logger = quiet()
	e, err := registration.NewEmbedded(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	return e.Heal(t.Context())
}
