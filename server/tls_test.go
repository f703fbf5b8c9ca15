package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/hollow"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry/auth"
	"github.com/muster-cloud/muster/server"
)

// secured is a server by TLS, at work until the test ends.
type secured struct {
	*server.Server
	t     *testing.T
	dir   string
	admin string
	ahead atomic.Int64 // how far the clock that certificates go by is ahead, in nanoseconds
}

func newSecured(t *testing.T, o server.Options) *secured {
	t.Helper()
	s := &secured{t: t, dir: t.TempDir()}
	o.DataDir, o.Listen, o.TLS, o.Logger = s.dir, "127.0.0.1:0", true, slog.New(slog.DiscardHandler)
	ahead := time.Duration(0)
	if o.Now != nil {
		ahead = time.Until(o.Now())
	}
	s.ahead.Store(int64(ahead))
	o.Now = func() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }
	var err error
	if s.Server, err = server.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	stop := run(t, s.Server)
	t.Cleanup(func() {
		if err := errors.Join(stop(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "there is an ADMIN key", func() bool {
		text, err := os.ReadFile(server.AdminKeyFile(s.dir))
		s.admin = strings.TrimSpace(string(text))
		return err == nil
	})
	return s
}

// trust is whom somebody trusts who reads ca.crt now.
func (s *secured) trust() auth.Trust {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "ca", "ca.crt"))
	if err != nil {
		s.t.Fatal(err)
	}
	roots, err := auth.DecodeBundle(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return auth.Trust{Roots: roots}
}

// client presents a key, and makes a new connection for each call.
func (s *secured) client(trust auth.Trust, key string) *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{
		URL: "https://" + s.Addr().String(), Key: key, Tries: 1,
		Trust: func() auth.Trust { return trust }, Transport: &http.Transport{DisableKeepAlives: true},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *secured) join(id muster.NodeID, token string) (*agent.Credentials, error) {
	s.t.Helper()
	join, err := auth.ParseJoin(token + "@" + s.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	return agent.Join(s.t.Context(), agent.JoinOptions{
		StateDir: s.t.TempDir(), ID: id, Join: join, Transport: &http.Transport{DisableKeepAlives: true},
	})
}

// rotate replaces the authority, once.
func (s *secured) rotate(admin *client.Client) {
	s.t.Helper()
	before, err := admin.CertificateAuthorities(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	after, err := admin.RotateCertificateAuthority(s.t.Context(), before[0].Pin)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(after) != len(before)+1 || !after[0].Issues || after[1].Issues || after[1].Pin != before[0].Pin {
		s.t.Errorf("of %+v it made %+v", before, after)
	}
	if _, err := admin.RotateCertificateAuthority(s.t.Context(), before[0].Pin); muster.CodeOf(err) != muster.Conflict {
		s.t.Errorf("the same was replaced twice: %v", err)
	}
}

func (s *secured) token(admin *client.Client) string {
	s.t.Helper()
	made, err := admin.CreateJoinToken(s.t.Context(), muster.CreateJoinTokenInput{})
	if err != nil {
		s.t.Fatal(err)
	}
	return made.Text
}

// serve runs the agent of a node that joined, and returns where it takes calls. Each of its
// own calls is by a new connection.
func (s *secured) serve(id muster.NodeID, c *agent.Credentials, log *slog.Logger) *net.TCPAddr {
	s.t.Helper()
	at := make(chan net.Addr, 1)
	api, err := client.New(client.Options{URL: c.Server(), Key: c.Key(), Trust: c.Trust, Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		s.t.Fatal(err)
	}
	a, err := agent.New(agent.Options{
		Driver: hollow.New(hollow.Options{}), Registry: api, Credentials: c, StateDir: s.t.TempDir(), ID: id,
		Listen: "127.0.0.1:0", CPUs: 4, MemoryMB: 4096, Ready: func(addr net.Addr) { at <- addr }, Logger: log,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, api.Close()); err != nil {
			s.t.Error(err)
		}
	})
	return (<-at).(*net.TCPAddr)
}

// count reads one of the server's metrics.
func (s *secured) count(name string) int {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "https://"+s.Addr().String()+"/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+s.admin)
	trust := s.trust()
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: auth.Party{Trust: func() auth.Trust { return trust }}.CallServer()}
	response, err := transport.RoundTrip(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + ` (\d+)$`).FindSubmatch(text)
	if m == nil {
		s.t.Fatalf("there is no %s: %s", name, text)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func launchOn(t *testing.T, c *client.Client, node string) {
	t.Helper()
	if _, err := c.LaunchInstance(t.Context(), muster.LaunchInstanceInput{Type: muster.Nano, NodeID: &node, Image: "minimal"}); err != nil {
		t.Fatal(err)
	}
}

func TestTLS_AgentsAreCalledAsWhoTheyAre(t *testing.T) {
	s := newSecured(t, server.Options{})
	admin := s.client(s.trust(), s.admin)
	one, err := s.join("one", s.token(admin))
	if err != nil {
		t.Fatal(err)
	}
	two, err := s.join("two", s.token(admin))
	if err != nil {
		t.Fatal(err)
	}
	at := s.serve("one", one, nil)
	eventually(t, "the first node is HEALTHY", func() bool {
		n, err := admin.Node(t.Context(), "one")
		return err == nil && n.Status == muster.Healthy
	})
	launchOn(t, admin, "one")
	eventually(t, "its agent took a nudge", func() bool { return s.count("muster_server_nudges_total") == 1 })

	// The second says that it is where the first one is: that one is not called in its name.
	_, err = s.client(two.Trust(), two.Key()).RegisterNode(t.Context(), muster.RegisterNodeInput{
		ID: "two", Hostname: "two", Addr: "127.0.0.1", Port: at.Port, Secure: true, Role: muster.Compute, CPUCount: 4, MemoryMB: 4096,
		Incarnation: 1, Images: []string{"minimal"},
	})
	if err != nil {
		t.Fatal(err)
	}
	launchOn(t, admin, "two")
	eventually(t, "a nudge failed", func() bool { return s.count("muster_server_nudges_failed_total") == 1 })
	if n := s.count("muster_server_nudges_total"); n != 1 {
		t.Errorf("%d nudges were taken", n)
	}
}

func TestTLS_TokensAreForOneMachine(t *testing.T) {
	s := newSecured(t, server.Options{})
	token := s.token(s.client(s.trust(), s.admin))
	if _, err := s.join("one", token); err != nil {
		t.Fatal(err)
	}
	if _, err := s.join("two", token); muster.CodeOf(err) != muster.Forbidden || !strings.Contains(err.Error(), "has been used by one") {
		t.Errorf("a token was used twice: %v", err)
	}
	other := newSecured(t, server.Options{})
	if _, err := other.join("one", token); muster.CodeOf(err) != muster.Unauthenticated || !strings.Contains(err.Error(), "somebody may be in between") {
		t.Errorf("at another cluster: %v", err)
	}
}

// stream is a watch that goes on.
type stream struct {
	events chan client.Event
	ended  chan error
}

func watching(t *testing.T, c *client.Client) *stream {
	t.Helper()
	s := &stream{events: make(chan client.Event, 100), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.ended <- c.WatchNodes(ctx, nil, client.WatchOptions{}, func(e client.Event) error { s.events <- e; return nil })
	}()
	t.Cleanup(func() { cancel(); <-done })
	s.await(t, func(e client.Event) bool { return e.Type == muster.EventSynced })
	return s
}

func (s *stream) await(t *testing.T, want func(client.Event) bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case e := <-s.events:
			if want(e) {
				return
			}
		case err := <-s.ended:
			t.Fatalf("the watch ended: %v", err)
		case <-deadline:
			t.Fatal("the watch did not tell in 10 s")
		}
	}
}

// label changes a node, which every stream tells.
func label(t *testing.T, c *client.Client, streams []*stream, value string) {
	t.Helper()
	if _, err := c.LabelNode(t.Context(), muster.LabelInput{ID: "n1", Set: muster.Map{"turn": value}}); err != nil {
		t.Fatal(err)
	}
	for _, s := range streams {
		s.await(t, func(e client.Event) bool { return e.Node != nil && e.Node.Labels["turn"] == value })
	}
}

// presented is what the server presents to who asks for a name.
func (s *secured) presented(name string) *x509.Certificate {
	s.t.Helper()
	conn, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != "http/1.1" {
		s.t.Errorf("it speaks %q", state.NegotiatedProtocol)
	}
	return state.PeerCertificates[0]
}

func TestTLS_RenewsUnderALiveStream(t *testing.T) {
	const day = 24 * time.Hour
	began := time.Now().Add(-21 * day)
	s := newSecured(t, server.Options{Now: func() time.Time { return began }})
	admin := s.client(s.trust(), s.admin)
	register(t, admin, "127.0.0.1", 1)
	live := []*stream{watching(t, admin)}
	label(t, admin, live, "before")
	first := s.presented("registry.example")
	s.ahead.Store(int64(-2 * day))
	if now := s.presented("registry.example"); !now.Equal(first) {
		t.Error("the certificate was renewed after 19 days")
	}
	s.ahead.Store(0)
	if now := s.presented("registry.example"); now.Equal(first) || !now.NotAfter.After(first.NotAfter.Add(20*day)) {
		t.Errorf("after 21 days it holds until %s, at first until %s", now.NotAfter, first.NotAfter)
	}
	label(t, admin, live, "after") // by a new connection, told on the old one
	if n := s.count("muster_transport_connections"); n != 1 {
		t.Errorf("there are %d WebSockets", n)
	}
}

func TestTLS_ChangesItsAuthorityUnderLiveStreams(t *testing.T) {
	s := newSecured(t, server.Options{})
	old := s.trust()
	admin := s.client(old, s.admin)
	register(t, admin, "127.0.0.1", 1)
	token := s.token(admin)
	node, err := s.join("one", s.token(admin))
	if err != nil {
		t.Fatal(err)
	}
	s.serve("one", node, nil)
	live := []*stream{watching(t, admin)}
	for turn := range 2 {
		s.rotate(admin)
		// Who trusts only the first authority goes on, on old connections and on new ones.
		live = append(live, watching(t, admin))
		label(t, admin, live, fmt.Sprint(turn))
	}
	if n := s.count("muster_transport_connections"); n != 3 {
		t.Errorf("there are %d WebSockets", n)
	}
	launchOn(t, admin, "one")
	eventually(t, "an agent of the first authority took a nudge", func() bool { return s.count("muster_server_nudges_total") == 1 })
	if _, err := s.join("two", token); err != nil {
		t.Errorf("by a token from before: %v", err)
	}
	if _, err := s.join("three", s.token(admin)); err != nil {
		t.Errorf("by a token from after: %v", err)
	}
	if roots := len(s.trust().Roots); roots != 3 {
		t.Errorf("%d authorities are trusted", roots)
	}
	// A restart goes on with the newest.
	pin := auth.PinOf(s.trust().Roots[0])
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, server.Options{DataDir: s.dir, TLS: true})
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if auth.PinOf(s.trust().Roots[0]) != pin {
		t.Error("after a restart there is another authority")
	}
}

// warnings counts what is logged as a warning or worse.
type warnings struct {
	slog.Handler
	n    *atomic.Int64
	last *atomic.Value
}

func (w warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (w warnings) Handle(_ context.Context, r slog.Record) error {
	w.n.Add(1)
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	w.last.Store(text)
	return nil
}

func TestTLS_NoBeatFailsWhileAuthoritiesChange(t *testing.T) {
	s := newSecured(t, server.Options{HeartbeatInterval: time.Second})
	admin := s.client(s.trust(), s.admin)
	seen := warnings{slog.DiscardHandler, new(atomic.Int64), new(atomic.Value)}
	const nodes = 3
	for i := range nodes {
		id := muster.NodeID(fmt.Sprint("n", i))
		node, err := s.join(id, s.token(admin))
		if err != nil {
			t.Fatal(err)
		}
		s.serve(id, node, slog.New(seen))
	}
	beats := func() (all []time.Time) {
		for n, err := range admin.AllNodes(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, *n.LastSeen)
		}
		return all
	}
	for turn := range 4 {
		before := time.Now().Add(time.Second) // at least a beat of each from now
		eventually(t, "every node beats on", func() bool {
			all := beats()
			return len(all) == nodes && !slices.ContainsFunc(all, func(at time.Time) bool { return at.Before(before) })
		})
		if turn < 3 {
			s.rotate(admin)
		}
	}
	if n := seen.n.Load(); n != 0 {
		t.Errorf("the agents warned %d times, at last of: %v", n, seen.last.Load())
	}
}

// ownPair writes a certificate of the operator's own.
func ownPair(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{"own.crt": {Type: "CERTIFICATE", Bytes: der}, "own.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTLS_ACertificateOfOnesOwn(t *testing.T) {
	dir := t.TempDir()
	first := ownPair(t, dir, "registry.example")
	s := newSecured(t, server.Options{TLSCert: filepath.Join(dir, "own.crt"), TLSKey: filepath.Join(dir, "own.key")})
	if !s.presented("registry.example").Equal(first) {
		t.Error("it is not presented")
	}
	if s.presented(auth.ServerName).Equal(first) {
		t.Error("members of the cluster are presented it")
	}
	if _, err := s.client(s.trust(), s.admin).ServerInfo(t.Context()); err != nil {
		t.Errorf("members of the cluster: %v", err)
	}
	// A half of it is not taken; both are, while the server runs.
	later := func() { s.ahead.Add(int64(2 * time.Second)) }
	if err := os.WriteFile(filepath.Join(dir, "own.crt"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if later(); !s.presented("registry.example").Equal(first) {
		t.Error("what cannot be read took the place of what could")
	}
	second := ownPair(t, dir, "registry.example")
	if later(); !s.presented("registry.example").Equal(second) {
		t.Error("the new one is not presented")
	}
}

func TestTLS_RefusesKeysThatEverybodyReads(t *testing.T) {
	dir := t.TempDir()
	ownPair(t, dir, "registry.example")
	o := server.Options{DataDir: t.TempDir(), Listen: "127.0.0.1:0", TLSCert: filepath.Join(dir, "own.crt"), TLSKey: filepath.Join(dir, "own.key"), Logger: slog.New(slog.DiscardHandler)}
	for mode, want := range map[os.FileMode]muster.Code{0o600: "", 0o640: "", 0o644: muster.Forbidden} {
		if err := os.Chmod(o.TLSKey, mode); err != nil {
			t.Fatal(err)
		}
		s, err := server.Open(t.Context(), o)
		if muster.CodeOf(err) != want || err != nil && !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("%04o: %v", mode, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}

func TestTLS_AnAuthorityThatDoesNotFit(t *testing.T) {
	o := server.Options{DataDir: t.TempDir(), Listen: "127.0.0.1:0", TLS: true, Logger: slog.New(slog.DiscardHandler)}
	s, err := server.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(o.DataDir, "ca", "ca.pem")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := auth.NewCA("other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := foreign.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text []byte
		mode os.FileMode
		want muster.Code
		says string
	}{
		"another cluster's": {other, 0o600, muster.Conflict, "another cluster"},
		"half":              {good[:len(good)/2], 0o600, muster.Invalid, "backup"},
		"read by others":    {good, 0o644, muster.Forbidden, "chmod 600"},
		"its own":           {good, 0o600, "", ""},
	} {
		if err := errors.Join(os.WriteFile(path, c.text, c.mode), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		s, err := server.Open(t.Context(), o)
		if muster.CodeOf(err) != c.want || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}

// Programs on the same machine need no certificate, on the very port.
func TestTLS_LoopbackMayDoWithout(t *testing.T) {
	s := newSecured(t, server.Options{})
	plain, err := client.New(client.Options{URL: "http://" + s.Addr().String(), Key: s.admin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	secure := s.client(s.trust(), s.admin)
	register(t, plain, "127.0.0.1", 1)
	label(t, secure, []*stream{watching(t, plain), watching(t, secure)}, "x")
	// Nobody gets in without a key by either way.
	for _, c := range []*client.Client{s.client(s.trust(), ""), s.client(auth.Trust{Pin: auth.PinOf(s.trust().Roots[0])}, "")} {
		if _, err := c.Nodes(t.Context(), nil, muster.PageInput{}); muster.CodeOf(err) != muster.Unauthenticated {
			t.Errorf("without a key: %v", err)
		}
	}
	old := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	if conn, err := tls.Dial("tcp", s.Addr().String(), old); err == nil {
		_ = conn.Close()
		t.Error("it speaks TLS 1.1")
	}
}
