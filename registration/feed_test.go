package registration_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

// opened opens a feed that runs until the test ends, or until the returned function is called.
func opened(t testing.TB, opts registration.FeedOptions) (*registration.Feed, *recorder, func()) {
	t.Helper()
	r := newRecorder()
	opts.Follower, opts.Logger = r, quiet()
	if opts.Origin == "" {
		opts.Origin = "uid-1"
	}
	if opts.Embedded.Dir == "" {
		opts.Embedded.Dir = t.TempDir()
	}
	f, err := registration.OpenFeed(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	stop := running(t, f.Run)
	return f, r, func() {
		stop()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come true", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func has(entries ...*muster.Registration) func(*recorder) bool {
	return func(r *recorder) bool {
		for _, e := range entries {
			if _, ok := r.there[registration.Subject(e)]; !ok {
				return false
			}
		}
		return len(r.there) == len(entries)
	}
}

func TestFeed_WithoutAnyOption(t *testing.T) {
	virtually(t, func(t *testing.T) {
		dir := t.TempDir()
		a, b := entry("a", "10.0.0.1", 80, time.Hour), entry("b", "10.0.0.1", 80, time.Hour)
		f, r, stop := opened(t, registration.FeedOptions{Embedded: registration.EmbeddedOptions{Dir: dir}})
		f.Replace(wanted(a, b))
		wait(t, f.Keeper)
		r.until(t, "both are there", has(a, b))
		if s := f.State(); !s.Up || f.Kind() != registration.JetStream || f.MaxAge() != 24*time.Hour || f.Addr() != "" {
			t.Errorf("got %+v, %s, %s, %q", s, f.Kind(), f.MaxAge(), f.Addr())
		}
		stop()
		f, r, _ = opened(t, registration.FeedOptions{Embedded: registration.EmbeddedOptions{Dir: dir}})
		r.until(t, "both are still there", has(a, b))
		f.Replace(wanted(a))
		r.until(t, "what nobody desires is gone", has(a))
		if findings, err := f.Verify(t.Context(), false); err != nil || len(findings) != 0 {
			t.Errorf("got %v, %v", findings, err)
		}
	})
}

// What an earlier life left and nobody desires goes by itself, but for what may still be
// desired when its node is heard of.
func TestFeed_RemovesStraysButSparesSome(t *testing.T) {
	virtually(t, func(t *testing.T) {
		dir := t.TempDir()
		a, b, c := entry("a", "10.0.0.1", 80, time.Hour), entry("b", "10.0.0.1", 80, time.Minute), entry("c", "10.0.0.1", 80, time.Hour)
		f, _, stop := opened(t, registration.FeedOptions{Embedded: registration.EmbeddedOptions{Dir: dir}})
		f.Replace(wanted(a, b, c))
		wait(t, f.Keeper)
		stop()
		f, r, _ := opened(t, registration.FeedOptions{Embedded: registration.EmbeddedOptions{Dir: dir}})
		time.Sleep(30 * time.Second)
		r.until(t, "nothing goes before anybody said what is desired", has(a, b, c))
		if findings, err := f.Verify(t.Context(), true); err != nil || len(findings) != 0 {
			t.Errorf("got %v, %v", findings, err)
		}
		f.Replace(wanted(a), registration.Subject(b))
		if findings, err := f.Verify(t.Context(), false); err != nil || len(findings) != 1 || findings[0].Subject != registration.Subject(c) {
			t.Errorf("got %v, %v", findings, err)
		}
		time.Sleep(20 * time.Second)
		r.until(t, "c is gone", has(a, b))
		time.Sleep(time.Minute)
		r.until(t, "b has run out", has(a))
		if c := f.Counts(); c.Markers != 1 {
			t.Errorf("got %+v", c)
		}
	})
}

// ccm's rm purges, and its init switches off what lookups need.
func TestFeed_HealsWhatOthersDo(t *testing.T) {
	virtually(t, func(t *testing.T) {
		a := entry("a", "10.0.0.1", 80, muster.RegistrationTTLForever)
		f, r, _ := opened(t, registration.FeedOptions{})
		f.Replace(wanted(a))
		wait(t, f.Keeper)
		_, conn, _ := f.Parts()
		soon := func(what string) { // not when it would be refreshed anyway
			t.Helper()
			if err := f.Wait(ended(t)); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		purge(t, conn, registration.Subject(a))
		time.Sleep(30 * time.Second)
		soon("purged before it was seen")
		r.until(t, "what was gone before it was seen is back", has(a))
		r.since()
		purge(t, conn, registration.Subject(a))
		time.Sleep(20 * time.Second)
		soon("purged")
		time.Sleep(time.Second)
		if got := r.since(); !slices.Equal(got, []string{"gone a Purge", "put a"}) {
			t.Errorf("got %q", got)
		}
		config := ccmStream()
		config.MaxAge, config.SubjectDeleteMarkerTTL = 24*time.Hour, 24*time.Hour
		if _, err := conn.JetStream().UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if found, err := conn.JetStream().Stream(t.Context(), "REGISTRATION"); err != nil || !found.CachedInfo().Config.AllowDirect {
			t.Error("allow_direct is still off", err)
		}
		if err := conn.JetStream().DeleteStream(t.Context(), "REGISTRATION"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		soon("deleted with its stream")
		if findings, err := f.Verify(t.Context(), false); err != nil || len(findings) != 0 {
			t.Errorf("got %v, %v", findings, err)
		}
	})
}

func TestFeed_StartsWithoutItsServer(t *testing.T) {
	dir := t.TempDir()
	first := embedded(t, registration.EmbeddedOptions{Dir: dir, Listen: "127.0.0.1:0", Token: "token"})
	addr := first.Addr()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	a := entry("a", "10.0.0.1", 80, time.Hour)
	f, r, _ := opened(t, registration.FeedOptions{Connect: registration.ConnectOptions{URL: "nats://token@" + addr}})
	f.Replace(wanted(a))
	eventually(t, "the feed says that it is down", func() bool { return strings.Contains(f.State().Reason, "no connection to the NATS server") })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := f.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	embedded(t, registration.EmbeddedOptions{Dir: dir, Listen: addr, Token: "token"})
	r.until(t, "it is published", has(a))
	eventually(t, "the feed is up", func() bool { return f.State().Up })
}

func TestFeed_TwoClustersShareAServer(t *testing.T) {
	server := open(t)
	to := registration.ConnectOptions{URL: "nats://token@" + server.Addr()}
	shared, mine := entry("shared", "10.0.0.1", 80, time.Hour), entry("mine", "10.0.0.1", 80, time.Hour)
	one, sawOne, _ := opened(t, registration.FeedOptions{Origin: "one", Connect: to})
	two, sawTwo, _ := opened(t, registration.FeedOptions{Origin: "two", Connect: to})
	one.Replace(wanted(shared, mine))
	wait(t, one.Keeper)
	two.Replace(wanted(shared))
	wait(t, two.Keeper)
	sawOne.until(t, "one sees that two has it", func(r *recorder) bool { return r.there[registration.Subject(shared)].Origin == "two" })
	one.Replace(nil)
	wait(t, one.Keeper)
	sawTwo.until(t, "what is the other's stays", has(shared))
	if c := two.Counts(); c.Publishes != 1 {
		t.Errorf("the other had to publish again: %+v", c)
	}
	two.Replace(nil)
	sawOne.until(t, "the last one has left", has())
	if c := one.Counts(); c.Disputes != 1 {
		t.Errorf("got %+v", c)
	}
}

func TestFeed_Kinds(t *testing.T) {
	a := entry("a", "10.0.0.1", 80, time.Hour)
	server := open(t)
	for _, c := range []struct {
		kind registration.Kind
		to   registration.ConnectOptions
	}{
		{registration.Noop, registration.ConnectOptions{}},
		{registration.Plain, registration.ConnectOptions{URL: "nats://token@" + server.Addr()}},
	} {
		f, _, _ := opened(t, registration.FeedOptions{Kind: c.kind, Connect: c.to})
		f.Replace(wanted(a))
		wait(t, f.Keeper)
		eventually(t, string(c.kind)+" is up", func() bool { return f.State().Up })
		if _, err := f.Verify(t.Context(), false); !errors.Is(err, registration.ErrUnavailable) {
			t.Errorf("%s: got %v", c.kind, err)
		}
		f.Replace(nil)
		wait(t, f.Keeper)
	}
}

func TestFeedOptions_Validate(t *testing.T) {
	for _, o := range []registration.FeedOptions{
		{Kind: "kafka"},
		{},
		{Origin: "x", Connect: registration.ConnectOptions{URL: "nats://x", Context: "y"}},
		{Origin: "x", Connect: registration.ConnectOptions{URL: "nats://x"}, Embedded: registration.EmbeddedOptions{Listen: "127.0.0.1:1", Token: "x"}},
		{Origin: "x", Embedded: registration.EmbeddedOptions{Listen: "0.0.0.0:4222"}},
		{Origin: "x", Stream: registration.StreamOptions{Replicas: 7}},
	} {
		if _, err := registration.OpenFeed(t.Context(), o); muster.CodeOf(err) != muster.Invalid {
			t.Errorf("%+v: got %v", o, err)
		}
	}
}

func TestConnect_ByContextFile(t *testing.T) {
	server := open(t)
	file := filepath.Join(t.TempDir(), "feed.json")
	text, _ := json.Marshal(map[string]string{"url": "nats://" + server.Addr(), "token": "token"})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, registration.ConnectOptions{Context: file})
	if s := registration.NewStream(conn, registration.StreamOptions{Logger: quiet()}); s != nil {
		if _, err := s.Ensure(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := registration.Connect(registration.ConnectOptions{Context: file + ".missing"}); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("got %v", err)
	}
	if _, err := registration.Connect(registration.ConnectOptions{URL: "nats://x", Credentials: file + ".missing"}); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("got %v", err)
	}
}

func TestConnect_ByTLS(t *testing.T) {
	certificate, pool := selfSigned(t)
	server := embedded(t, registration.EmbeddedOptions{
		Listen: "127.0.0.1:0", Token: "token", TLS: &tls.Config{Certificates: []tls.Certificate{certificate}},
	})
	own := connect(t, registration.ConnectOptions{Embedded: server})
	other := connect(t, registration.ConnectOptions{URL: "tls://token@" + server.Addr(), TLS: &tls.Config{RootCAs: pool}})
	for _, conn := range []*registration.Conn{own, other} {
		if _, err := registration.NewStream(conn, registration.StreamOptions{Logger: quiet()}).Ensure(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, opt := range []nats.Option{nats.Secure(), nats.Name("no TLS")} {
		if conn, err := nats.Connect("nats://token@"+server.Addr(), opt); err == nil {
			conn.Close()
			t.Error("a server that nobody vouches for was believed")
		}
	}
}

func selfSigned(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// What publishers of ours never write: the TTL of a header is what the server goes by, whatever the text says, and what
// carries our origin is ours, whatever it is.
func TestKeeper_VerifyFindsWhatIsNoEntryOfOurs(t *testing.T) {
	a := entry("a", "10.0.0.1", 80, time.Hour)
	good, _ := registration.Encode(a)
	place, nowhere := registration.Subject(a), registration.Prefix+".prod.http.web.!"
	for _, c := range []struct {
		name, subject, data string
		header              map[string]string
		want                registration.Damage
	}{
		{"another time to live", place, string(good), map[string]string{"Nats-TTL": "2h0m0s", "Muster-Origin": "uid-1"}, registration.WrongTTL},
		{"no time to live", place, string(good), map[string]string{"Muster-Origin": "uid-1"}, registration.WrongTTL},
		{"no origin", place, string(good), map[string]string{"Nats-TTL": "1h0m0s"}, registration.Foreign},
		{"no entry, in the place of ours", place, "{", map[string]string{"Nats-TTL": "1h0m0s", "Muster-Origin": "uid-1"}, registration.Different},
		{"no entry, by somebody else", place, "{", nil, registration.Foreign},
		{"no entry, where none can be", nowhere, "{", map[string]string{"Muster-Origin": "uid-1"}, registration.Malformed},
		{"a marker", place, "", map[string]string{"Nats-Marker-Reason": "Remove", "Nats-TTL": "1h0m0s"}, registration.Missing},
	} {
		t.Run(c.name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				s, conn := stream(t, registration.StreamOptions{}) // without a mirror, which would put some of it right before
				k := registration.NewKeeper(registration.NewJetStream(s, "uid-1"), registration.KeeperOptions{Origin: "uid-1", Logger: quiet()})
				running(t, k.Run)
				k.Replace(wanted(a))
				wait(t, k)
				msg := &nats.Msg{Subject: c.subject, Data: []byte(c.data), Header: nats.Header{"Nats-Rollup": {"sub"}}}
				for name, value := range c.header {
					msg.Header.Set(name, value)
				}
				if _, err := conn.JetStream().PublishMsg(t.Context(), msg); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				findings, err := k.Verify(t.Context(), s, true)
				if diff := cmp.Diff([]registration.Finding{{Subject: c.subject, Damage: c.want}}, findings); diff != "" || err != nil {
					t.Error(diff, err)
				}
				wait(t, k)
				if findings, err := k.Verify(t.Context(), s, false); err != nil || len(findings) != 0 {
					t.Errorf("after the repair: %v, %v", findings, err)
				}
				if got := live(t, s); len(got) != 1 || string(got[place].Data) != string(good) {
					t.Errorf("the feed holds %v", got)
				}
			})
		})
	}
}
