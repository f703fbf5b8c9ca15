package auth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

const cluster = "0123456789abcdef0123456789abcdef"

func day(n int) time.Time { return time.Date(2026, 1, 1+n, 12, 0, 0, 0, time.UTC) }

func newCA(t *testing.T, now time.Time) *auth.CA {
	t.Helper()
	ca, err := auth.NewCA(cluster, now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func rotate(t *testing.T, ca *auth.CA, now time.Time) *auth.CA {
	t.Helper()
	next, err := ca.Rotate(now)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// chain is what somebody with a new certificate presents.
func chain(t *testing.T, ca *auth.CA, who auth.Identity, now time.Time) [][]byte {
	t.Helper()
	key, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	c, err := ca.Issue(auth.Wish{Public: key.Public(), Identity: who}, now)
	if err != nil {
		t.Fatal(err)
	}
	return append([][]byte{c.Raw}, ca.Chain()...)
}

func server() auth.Identity { return auth.ServerIdentity(cluster) }

func TestCA_Issues(t *testing.T) {
	now := day(0)
	ca := newCA(t, now)
	key, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	c, err := ca.Issue(auth.Wish{
		Public: key.Public(), Identity: server(), Names: []string{"registry.example", "10.0.0.1", "registry.example", "::1"},
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.DNSNames, []string{"registry.example"}) || len(c.IPAddresses) != 2 {
		t.Errorf("names %v, addresses %v", c.DNSNames, c.IPAddresses)
	}
	if !c.NotBefore.Equal(now.Add(-10*time.Minute)) || !c.NotAfter.Equal(now.Add(30*24*time.Hour)) {
		t.Errorf("it holds from %s to %s", c.NotBefore, c.NotAfter)
	}
	if at := auth.RenewAt(c); at.Before(day(19)) || at.After(day(21)) {
		t.Errorf("it is renewed at %s", at)
	}
	if c.IsCA || c.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Error("it can sign others")
	}
	if who, ok := auth.IdentityOf(c); !ok || who != server() {
		t.Errorf("it is for %s", who)
	}
	// What a browser checks, for which the authority was imported.
	roots := x509.NewCertPool()
	roots.AddCert(ca.Roots()[0])
	if _, err := c.Verify(x509.VerifyOptions{Roots: roots, DNSName: "registry.example", CurrentTime: now}); err != nil {
		t.Error(err)
	}
}

func TestCA_IssuesForItsClusterAndKindOfKeyOnly(t *testing.T) {
	ca := newCA(t, day(0))
	p256, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ofRSA, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	authority, _ := auth.ParseIdentity("muster://" + cluster + "/ca")
	for name, c := range map[string]struct {
		wish auth.Wish
		want muster.Code
	}{
		"good":            {auth.Wish{Public: p256.Public(), Identity: auth.NodeIdentity(cluster, "n-1")}, ""},
		"P-384":           {auth.Wish{Public: p384.Public(), Identity: server()}, muster.Invalid},
		"RSA":             {auth.Wish{Public: ofRSA.Public(), Identity: server()}, muster.Invalid},
		"no key":          {auth.Wish{Identity: server()}, muster.Invalid},
		"another cluster": {auth.Wish{Public: p256.Public(), Identity: auth.ServerIdentity("other")}, muster.Internal},
		"an authority":    {auth.Wish{Public: p256.Public(), Identity: authority}, muster.Internal},
		"nobody":          {auth.Wish{Public: p256.Public()}, muster.Internal},
	} {
		if _, err := ca.Issue(c.wish, day(0)); muster.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := auth.NewCA("not a uid", day(0)); err == nil {
		t.Error("an authority was made for no cluster")
	}
}

func TestRequest_ProvesThatItsSenderHoldsTheKey(t *testing.T) {
	key, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := auth.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := auth.ParseRequest(text)
	if err != nil || !key.PublicKey.Equal(public) {
		t.Fatalf("%v, %v", public, err)
	}
	one, _ := auth.PinOfKey(public)
	if two, err := auth.PinOfKey(key.Public()); err != nil || one != two || one.IsZero() {
		t.Error("the same key has two pins")
	}
	block, _ := pem.Decode([]byte(text))
	forged := slices.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	ofRSA, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, ofRSA)
	if err != nil {
		t.Fatal(err)
	}
	in := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	for name, c := range map[string]struct{ text, want string }{
		"a forged signature": {in("CERTIFICATE REQUEST", forged), "not signed"},
		"RSA":                {in("CERTIFICATE REQUEST", other), "P-256"},
		"another type":       {in("CERTIFICATE", block.Bytes), "in PEM"},
		"nothing":            {"", "in PEM"},
		"garbage":            {in("CERTIFICATE REQUEST", []byte("x")), "cannot be read"},
		"too much":           {strings.Repeat("x", 5000), "4096"},
	} {
		if _, err := auth.ParseRequest(c.text); muster.CodeOf(err) != muster.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestIdentity_RoundTrip(t *testing.T) {
	for _, who := range []auth.Identity{server(), auth.NodeIdentity(cluster, "n-0123456789abcdef")} {
		if got, ok := auth.ParseIdentity(who.String()); !ok || got != who {
			t.Errorf("%s came back as %s", who, got)
		}
	}
	for _, text := range []string{
		"", "muster://", "muster:///server", "muster://c", "muster://c/", "muster://c/node", "muster://c/node/", "muster://c/node/a/b",
		"muster://c/node/a%20b", "muster://c/server/", "muster://c/other", "https://c/server", "muster://c:1/server", "muster://u@c/server",
		"muster://c/server?x", "muster://c/node/n-1#x", "muster://" + strings.Repeat("c", 129) + "/server",
	} {
		if who, ok := auth.ParseIdentity(text); ok {
			t.Errorf("%q is %s", text, who)
		}
	}
}

func TestCA_EncodesItself(t *testing.T) {
	ca := rotate(t, rotate(t, newCA(t, day(0)), day(1)), day(2))
	text, err := ca.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := auth.DecodeCA(text)
	if err != nil {
		t.Fatal(err)
	}
	if again.ClusterUID() != cluster || again.Pin() != ca.Pin() || !again.NotAfter().Equal(ca.NotAfter()) || len(again.Roots()) != 3 ||
		!slices.EqualFunc(again.Chain(), ca.Chain(), slices.Equal[[]byte]) {
		t.Error("another authority came back")
	}
	if _, err := (auth.Trust{Roots: ca.Roots()}).Server(chain(t, again, server(), day(3)), day(3)); err != nil {
		t.Errorf("what it issues now is not believed: %v", err)
	}
}

func TestDecodeCA_Refuses(t *testing.T) {
	encode := func(ca *auth.CA) string {
		text, err := ca.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	one, two := newCA(t, day(0)), newCA(t, day(0))
	good, other := encode(rotate(t, one, day(1))), encode(two)
	const end = "-----END PRIVATE KEY-----\n"
	at := strings.Index(good, end) + len(end)
	key, certificates := good[:at], good[at:]
	otherKey := other[:strings.Index(other, end)+len(end)]
	leaf, err := x509.ParseCertificate(chain(t, one, server(), day(0))[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                 {"", "private key"},
		"no key":                  {certificates, "private key"},
		"two keys":                {otherKey + good, "private key"},
		"no certificate":          {key, "private key is not"},
		"another's key":           {otherKey + certificates, "private key is not"},
		"another's certificates":  {key + string(auth.EncodeBundle(two.Roots())), "private key is not"},
		"what is no authority":    {key + string(auth.EncodeBundle([]*x509.Certificate{leaf})), "not that of"},
		"a key that is none":      {"-----BEGIN PRIVATE KEY-----\nAAAA\n" + end + certificates, "cannot be read"},
		"a certificate cut short": {key + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"},
	} {
		if _, err := auth.DecodeCA([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := auth.DecodeCA([]byte(good)); err != nil {
		t.Error(err)
	}
}

func TestBundle_RoundTrip(t *testing.T) {
	ca := rotate(t, newCA(t, day(0)), day(1))
	text := auth.EncodeBundle(ca.Roots())
	got, err := auth.DecodeBundle(append([]byte("# with a remark\n"), text...))
	if err != nil || len(got) != 2 || !got[0].Equal(ca.Roots()[0]) {
		t.Errorf("%d certificates, %v", len(got), err)
	}
	private, err := ca.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"nothing": "", "no PEM": "x", "a private key": string(private)} {
		if _, err := auth.DecodeBundle([]byte(text)); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	key, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := auth.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := auth.DecodeKey(encoded); err != nil || !again.Equal(key) {
		t.Errorf("the key came back as another: %v", err)
	}
	if _, err := auth.DecodeKey(text); err == nil {
		t.Error("a certificate was read as a key")
	}
}

func FuzzDecode(f *testing.F) {
	ca, err := auth.NewCA(cluster, day(0))
	if err != nil {
		f.Fatal(err)
	}
	whole, err := ca.Encode()
	if err != nil {
		f.Fatal(err)
	}
	key, err := auth.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	request, err := auth.NewRequest(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(whole))
	f.Add(string(auth.EncodeBundle(ca.Roots())))
	f.Add(request)
	f.Fuzz(func(t *testing.T, text string) {
		if ca, err := auth.DecodeCA([]byte(text)); err == nil {
			if _, err := ca.Encode(); err != nil || ca.Pin().IsZero() {
				t.Errorf("an authority that was read cannot be written: %v", err)
			}
		}
		if all, err := auth.DecodeBundle([]byte(text)); err == nil {
			if again, err := auth.DecodeBundle(auth.EncodeBundle(all)); err != nil || len(again) != len(all) {
				t.Errorf("%d certificates came back as %d: %v", len(all), len(again), err)
			}
		}
		if public, err := auth.ParseRequest(text); (public == nil) == (err == nil) {
			t.Errorf("%v, %v", public, err)
		}
	})
}

func FuzzParseIdentity(f *testing.F) {
	f.Add("muster://c/node/n-1")
	f.Add("muster://c/server")
	f.Fuzz(func(t *testing.T, text string) {
		if who, ok := auth.ParseIdentity(text); ok && who.String() != text {
			t.Errorf("%q was read as %q", text, who)
		}
	})
}
