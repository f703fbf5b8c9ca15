package auth_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/muster-cloud/muster/registry/auth"
)

// party is one with a certificate of an authority.
func party(t *testing.T, ca *auth.CA, who auth.Identity, now time.Time) auth.Party {
	t.Helper()
	key, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(auth.Wish{Public: key.Public(), Identity: who, Names: []string{"registry.example"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	own := &tls.Certificate{Certificate: append([][]byte{leaf.Raw}, ca.Chain()...), PrivateKey: key, Leaf: leaf}
	return auth.Party{
		Trust:       func() auth.Trust { return auth.Trust{Roots: ca.Roots()} },
		Certificate: func() (*tls.Certificate, error) { return own, nil },
		Now:         func() time.Time { return now },
	}
}

// open is how a server takes everybody.
func open(p auth.Party) *tls.Config {
	return &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.Certificate() }}
}

// meet makes a connection, says one word on it, and returns what each end met with. The
// caller's word is heard only if both agree.
func meet(t *testing.T, caller, taker *tls.Config) (heard string, called, taken error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var under net.Conn
		if under, taken = listener.Accept(); taken != nil {
			return
		}
		conn := tls.Server(under, taker)
		defer conn.Close()
		word := make([]byte, 4)
		if _, taken = io.ReadFull(conn, word); taken == nil {
			heard = string(word)
			_, taken = conn.Write(word)
		}
	}()
	under, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(under, caller)
	if _, called = conn.Write([]byte("word")); called == nil {
		_, called = io.ReadFull(conn, make([]byte, 4))
	}
	_ = conn.Close()
	<-done
	return heard, called, taken
}

func TestParty_BelievesOneIdentity(t *testing.T) {
	now := day(1)
	ca, stranger := newCA(t, day(0)), newCA(t, day(0))
	srv := party(t, ca, server(), now)
	n1, n2 := party(t, ca, auth.NodeIdentity(cluster, "n-1"), now), party(t, ca, auth.NodeIdentity(cluster, "n-2"), now)
	other := party(t, stranger, server(), now)
	foreign := party(t, stranger, auth.NodeIdentity(cluster, "n-1"), now)
	nobody := auth.Party{Trust: n1.Trust, Now: n1.Now}
	pinned := auth.Party{Trust: func() auth.Trust { return auth.Trust{Pin: ca.Pin()} }, Now: n1.Now}
	called := func(name string) *tls.Config {
		config := auth.CallNamed(leafOf(t, srv))
		config.ServerName, config.Time = name, n1.Now
		return config
	}
	for name, c := range map[string]struct {
		caller, taker *tls.Config
		good          bool
	}{
		"a node calls the server":          {n1.CallServer(), open(srv), true},
		"a stranger calls the server":      {nobody.CallServer(), open(srv), true},
		"by the pin":                       {pinned.CallServer(), open(srv), true},
		"by a certificate and its name":    {called("registry.example"), open(srv), true},
		"by a certificate, another name":   {called("other.example"), open(srv), false},
		"somebody in between":              {n1.CallServer(), open(other), false},
		"somebody in between, by the pin":  {pinned.CallServer(), open(other), false},
		"a node plays the server":          {n1.CallServer(), open(n2), false},
		"the server calls a node":          {srv.CallNode("n-1"), n1.TakeServer(), true},
		"another node at its address":      {srv.CallNode("n-1"), n2.TakeServer(), false},
		"a foreign node of the same uid":   {srv.CallNode("n-1"), foreign.TakeServer(), false},
		"the server at a node's address":   {srv.CallNode("n-1"), open(srv), false},
		"a node calls a node":              {n2.CallNode("n-1"), n1.TakeServer(), false},
		"nobody calls a node":              {nobody.CallNode("n-1"), n1.TakeServer(), false},
		"a foreign server calls a node":    {other.CallNode("n-1"), n1.TakeServer(), false},
		"a node at the server's, unproven": {nobody.CallServer(), open(n1), false},
	} {
		heard, called, taken := meet(t, c.caller, c.taker)
		if c.good && (heard != "word" || called != nil || taken != nil) {
			t.Errorf("%s: %v, %v", name, called, taken)
		}
		if !c.good && (heard != "" || called == nil || taken == nil) {
			t.Errorf("%s: %q was heard, with %v and %v", name, heard, called, taken)
		}
	}
}

func leafOf(t *testing.T, p auth.Party) []*x509.Certificate {
	t.Helper()
	own, err := p.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{own.Leaf}
}

// A connection that is resumed is checked like a new one.
func TestParty_ChecksResumedConnections(t *testing.T) {
	ca := newCA(t, day(0))
	now := day(1)
	srv := party(t, ca, server(), day(1))
	asks := 0
	caller := auth.Party{Now: func() time.Time { return now }, Trust: func() auth.Trust {
		asks++
		return auth.Trust{Roots: ca.Roots()}
	}}.CallServer()
	caller.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	taker := open(srv)
	for range 2 {
		if _, called, taken := meet(t, caller, taker); called != nil || taken != nil {
			t.Fatal(called, taken)
		}
	}
	if asks != 2 {
		t.Errorf("trust was asked for %d times", asks)
	}
	now = day(60)
	if heard, called, _ := meet(t, caller, taker); called == nil || heard != "" {
		t.Error("an expired certificate was believed, for it had been before")
	}
}

func TestParty_SaysWhyItHasNoCertificate(t *testing.T) {
	lost := errors.New("the key is lost")
	ca := newCA(t, day(0))
	taker := party(t, ca, auth.NodeIdentity(cluster, "n-1"), day(1))
	taker.Certificate = func() (*tls.Certificate, error) { return nil, lost }
	if _, _, taken := meet(t, party(t, ca, server(), day(1)).CallNode("n-1"), taker.TakeServer()); !errors.Is(taken, lost) {
		t.Errorf("got %v", taken)
	}
}
