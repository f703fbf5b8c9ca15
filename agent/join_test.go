package agent_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/registry/auth"
)

const clusterUID = "0123456789abcdef"

// gate is a server that lets nodes in, by TLS.
type gate struct {
	t     *testing.T
	ca    *auth.CA
	at    netip.AddrPort
	token auth.JoinToken
	dir   string // of the agent: its key has to be there before it asks

	mu     sync.Mutex
	clock  func() time.Time // what its answers say
	answer func(n int, csr string) (status int, body string)
	asked  []string // the requests, by certificate request
	others []string // the tokens on other routes
}

func newCA(t *testing.T, now time.Time) *auth.CA {
	t.Helper()
	ca, err := auth.NewCA(clusterUID, now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func identity(t *testing.T, ca *auth.CA, who auth.Identity, now time.Time) tls.Certificate {
	t.Helper()
	key, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(auth.Wish{Public: key.Public(), Identity: who}, now)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: append([][]byte{leaf.Raw}, ca.Chain()...), PrivateKey: key, Leaf: leaf}
}

// newGate serves with a certificate that was issued then.
func newGate(t *testing.T, then time.Time) *gate {
	t.Helper()
	g := &gate{t: t, ca: newCA(t, then), dir: t.TempDir(), clock: time.Now}
	g.token = auth.JoinToken{ID: "t-1", Secret: auth.NewSecret(), Pin: g.ca.Pin()}
	g.answer = func(_ int, csr string) (int, string) { return 200, g.admit(csr, "n-1") }
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.at = netip.MustParseAddrPort(listener.Addr().String())
	server := httptest.NewUnstartedServer(g)
	server.Listener = listener
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{identity(t, g.ca, auth.ServerIdentity(clusterUID), then)}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return g
}

// admit is the answer that lets a node in.
func (g *gate) admit(csr string, uid muster.NodeUID) string {
	public, err := auth.ParseRequest(csr)
	if err != nil {
		g.t.Error(err)
		return ""
	}
	leaf, err := g.ca.Issue(auth.Wish{Public: public, Identity: auth.NodeIdentity(clusterUID, uid)}, time.Now())
	if err != nil {
		g.t.Error(err)
		return ""
	}
	body, err := json.Marshal(map[string]any{"data": map[string]any{"joinNode": map[string]any{
		"nodeUid": uid, "key": auth.Key{ID: "k-7", Secret: auth.NewSecret()}.Text(), "revision": 3,
		"certificate": string(auth.EncodeBundle([]*x509.Certificate{leaf})), "ca": string(auth.EncodeBundle(g.ca.Roots())),
	}}})
	if err != nil {
		g.t.Error(err)
	}
	return string(body)
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.Header().Set("Date", g.clock().UTC().Format(http.TimeFormat))
	if r.URL.Path != "/graphql" {
		g.others = append(g.others, r.Header.Get("Authorization"))
		return
	}
	if got := r.Header.Get("Authorization"); got != "Bearer "+g.token.Text() {
		g.t.Errorf("the token came as %q", got)
	}
	if _, err := os.Stat(filepath.Join(g.dir, "node.key")); err != nil {
		g.t.Errorf("it asks before its key is on disk: %v", err)
	}
	var request struct {
		Variables struct{ Input muster.JoinNodeInput }
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		g.t.Error(err)
	}
	in := request.Variables.Input
	if in.NodeID != "node-a" {
		g.t.Errorf("it joins as %q", in.NodeID)
	}
	g.asked = append(g.asked, in.CSR)
	status, body := g.answer(len(g.asked), in.CSR)
	if status == 0 {
		panic(http.ErrAbortHandler) // the answer gets lost
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func (g *gate) options() agent.JoinOptions {
	return agent.JoinOptions{
		StateDir: g.dir, ID: "node-a",
		Join: auth.Join{Token: g.token, Host: g.at.Addr().String(), Port: int(g.at.Port())},
	}
}

func (g *gate) join() (*agent.Credentials, error) { return agent.Join(g.t.Context(), g.options()) }

func (g *gate) requests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.asked)
}

func refusal(code muster.Code, message string) func(int, string) (int, string) {
	return func(int, string) (int, string) {
		body, _ := json.Marshal(map[string]any{"errors": []any{map[string]any{"message": message, "extensions": map[string]any{"code": code}}}})
		return 200, string(body)
	}
}

func TestJoin_KeepsWhatItGets(t *testing.T) {
	g := newGate(t, time.Now())
	c, err := g.join()
	if err != nil {
		t.Fatal(err)
	}
	if c.UID() != "n-1" || !c.Secure() || c.Server() != "https://"+g.at.String() || !strings.HasPrefix(c.Key(), "muster_k-7_") {
		t.Errorf("it is %s at %s", c.UID(), c.Server())
	}
	for _, name := range []string{"node.key", "node.crt", "ca.crt", "access.key", "joined.json"} {
		info, err := os.Stat(filepath.Join(g.dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	again, err := agent.OpenCredentials(g.dir)
	if err != nil {
		t.Fatal(err)
	}
	if again.Key() != c.Key() || again.UID() != "n-1" || again.NodeID() != "node-a" || again.Trust().ClusterUID() != clusterUID || !again.Secure() {
		t.Error("after a restart it is somebody else")
	}
	for _, token := range g.others {
		if token != "" {
			t.Error("the token was presented where it is not needed")
		}
	}
	// The unit's command line keeps the token that was used.
	if _, err := g.join(); err != nil || g.requests() != 1 {
		t.Errorf("it joined once more: %v", err)
	}
	// Another one is a wish to join anew, with the same private key.
	before := keyOf(t, g.asked[0])
	g.token = auth.JoinToken{ID: "t-2", Secret: auth.NewSecret(), Pin: g.ca.Pin()}
	g.answer = func(_ int, csr string) (int, string) { return 200, g.admit(csr, "n-2") }
	o := g.options()
	o.ID = "" // it keeps its name, too
	if c, err = agent.Join(t.Context(), o); err != nil || c.UID() != "n-2" || c.NodeID() != "node-a" || keyOf(t, g.asked[1]) != before {
		t.Errorf("it joined anew as %s: %v", c.UID(), err)
	}
}

func keyOf(t *testing.T, csr string) auth.Pin {
	t.Helper()
	public, err := auth.ParseRequest(csr)
	if err != nil {
		t.Fatal(err)
	}
	pin, err := auth.PinOfKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return pin
}

func TestJoin_AsksAgainWhenTheAnswerGotLost(t *testing.T) {
	g := newGate(t, time.Now())
	g.answer = func(n int, csr string) (int, string) {
		switch n {
		case 1:
			return 0, ""
		case 2:
			return 503, ""
		}
		return 200, g.admit(csr, "n-1")
	}
	if _, err := g.join(); err != nil {
		t.Fatal(err)
	}
	if len(g.asked) != 3 || keyOf(t, g.asked[0]) != keyOf(t, g.asked[2]) {
		t.Errorf("%d requests, not of one key", len(g.asked))
	}
}

func TestJoin_SendsNothingToStrangers(t *testing.T) {
	g, between := newGate(t, time.Now()), newGate(t, time.Now())
	o := g.options()
	o.Join.Port = int(between.at.Port())
	_, err := agent.Join(t.Context(), o)
	if muster.CodeOf(err) != muster.Unauthenticated || !strings.Contains(err.Error(), "somebody may be in between") {
		t.Errorf("got %v", err)
	}
	if n := between.requests() + len(between.others); n != 0 {
		t.Errorf("it heard %d requests", n)
	}
	if _, err := agent.OpenCredentials(g.dir); err == nil {
		t.Error("it believes that it has joined")
	}
}

func TestJoin_TellsOfClocksThatAreOff(t *testing.T) {
	const days = 24 * time.Hour
	for name, c := range map[string]struct {
		issued time.Duration // when the server's certificate was, from now
		there  time.Duration // how far the server's clock is ahead
		told   bool
	}{
		"ahead":                              {0, -time.Hour, true},
		"behind":                             {0, 6 * time.Minute, true},
		"ahead of the certificate's end":     {-40 * days, -40 * days, true},
		"behind the certificate's beginning": {time.Hour, time.Hour, true},
		"close enough":                       {0, 4 * time.Minute, false},
	} {
		g := newGate(t, time.Now().Add(c.issued))
		g.clock = func() time.Time { return time.Now().Add(c.there) }
		_, err := g.join()
		if !c.told {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if muster.CodeOf(err) != muster.Invalid || !strings.Contains(err.Error(), "timedatectl") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		m := skew.FindStringSubmatch(err.Error())
		if m == nil {
			t.Errorf("%s: it does not say how far: %v", name, err)
			continue
		}
		off, err := time.ParseDuration(m[1])
		if m[2] == "ahead of" {
			off = -off
		}
		if err != nil || (off-c.there).Abs() > 5*time.Second {
			t.Errorf("%s: the server is said to be %s ahead, and is %s", name, off, c.there)
		}
		if g.requests() != 0 {
			t.Errorf("%s: the token was presented", name)
		}
	}
}

var skew = regexp.MustCompile(`is (\S+) (ahead of|behind) the server's \(\d{4}-.*Z\)`)

func TestJoin_Refusals(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(g *gate) func(int, string) (int, string)
		code   muster.Code
		want   string
	}{
		"used": {func(*gate) func(int, string) (int, string) {
			return refusal(muster.Forbidden, "the join token t-1 has been used")
		}, muster.Forbidden, "has been used"},
		"expired": {func(*gate) func(int, string) (int, string) {
			return refusal(muster.Unauthenticated, "the join token t-1 expired")
		}, muster.Unauthenticated, "expired"},
		"the name is taken": {func(*gate) func(int, string) (int, string) {
			return refusal(muster.AlreadyExists, "the name node-a is that of")
		}, muster.AlreadyExists, "node-a"},
		"another's certificate": {func(g *gate) func(int, string) (int, string) {
			key, err := auth.NewKey()
			if err != nil {
				t.Fatal(err)
			}
			csr, err := auth.NewRequest(key)
			if err != nil {
				t.Fatal(err)
			}
			return func(int, string) (int, string) { return 200, g.admit(csr, "n-1") }
		}, muster.Internal, "not this node's"},
		"no key": {func(g *gate) func(int, string) (int, string) {
			return func(_ int, csr string) (int, string) {
				return 200, strings.Replace(g.admit(csr, "n-1"), "muster_k-7_", "muster_k-8_", 1)
			}
		}, muster.Internal, "no key"},
	} {
		g := newGate(t, time.Now())
		g.answer = c.answer(g)
		_, err := g.join()
		if muster.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s with %q", name, err, c.code, c.want)
		}
		if g.requests() != 1 {
			t.Errorf("%s: it asked %d times", name, g.requests())
		}
		if _, err := agent.OpenCredentials(g.dir); err == nil {
			t.Errorf("%s: it believes that it has joined", name)
		}
	}
}

func TestOpenCredentials_Refuses(t *testing.T) {
	for name, c := range map[string]struct {
		file  string
		spoil func(path string) error
		code  muster.Code
		want  string
	}{
		"a key that others read": {"node.key", func(p string) error { return os.Chmod(p, 0o644) }, muster.Forbidden, "chmod 600"},
		"an access key, too":     {"access.key", func(p string) error { return os.Chmod(p, 0o640) }, muster.Forbidden, "chmod 600"},
		"a key that is lost":     {"node.key", os.Remove, muster.Invalid, "join anew"},
		"a lost certificate":     {"node.crt", os.Remove, muster.Invalid, "join anew"},
		"half an access key":     {"access.key", func(p string) error { return os.Truncate(p, 20) }, muster.Invalid, "typo"},
		"garbage":                {"joined.json", func(p string) error { return os.Truncate(p, 3) }, muster.Invalid, "joined.json"},
		"a lost authority":       {"ca.crt", os.Remove, muster.Invalid, "join anew"},
		"no authority":           {"ca.crt", func(p string) error { return os.Truncate(p, 0) }, muster.Invalid, "authorities"},
		"another's certificate": {"node.crt", func(p string) error {
			other := identity(t, newCA(t, time.Now()), auth.NodeIdentity(clusterUID, "n-1"), time.Now())
			return os.WriteFile(p, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate[0]}), 0o600)
		}, muster.Invalid, "not this node's"},
	} {
		g := newGate(t, time.Now())
		if _, err := g.join(); err != nil {
			t.Fatal(err)
		}
		if err := c.spoil(filepath.Join(g.dir, c.file)); err != nil {
			t.Fatal(err)
		}
		if _, err := agent.OpenCredentials(g.dir); muster.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
