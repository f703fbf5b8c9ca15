package registration_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/muster-cloud/muster/registration"
)

// entrance is one way to come in: what is arranged is wrong at first, and mend puts it right while both
// the server and the feed run.
type entrance struct {
	name string
	says string // names the setting that is to be mended
	make func(t *testing.T, n *natsd) (conf string, to registration.ConnectOptions, mend func())
}

func entrances() []entrance {
	return []entrance{
		{"token", "the token in nats-url", byURL("token: %q", "s3cret@")},
		{"name and password", "the name and the password in nats-url", byURL("user: us, password: %q", "us:s3cret@")},
		{"nobody", "nats-url names no user", byURL("token: %q", "")},
		{"password of a context", "user and password of nats-context", byContext(`authorization: {user: us, password: s3cret}`,
			map[string]string{"user": "us", "password": "guess"}, map[string]string{"user": "us", "password": "s3cret"})},
		{"token of a context", "token of nats-context", byContext(`authorization: {token: s3cret}`,
			map[string]string{"token": "guess"}, map[string]string{"token": "s3cret"})},
		{"a context that asks for another domain", "jetstream_domain of nats-context", byContext("",
			map[string]string{"jetstream_domain": "elsewhere"}, map[string]string{"jetstream_domain": "hub"})},
		{"nkey", "nkey (", byNKey},
		{"credentials", "nats-creds (", byCredentials(false)},
		{"credentials of a context", "creds (", byCredentials(true)},
		{"authority", "name the CA that it is of", byAuthority},
		{"certificate", "name a certificate that it takes", byCertificate},
		{"certificate of another authority", "name a certificate that it takes", byOthersCertificate},
	}
}

// A server that does not let us in is no reason to stop, and is named with the setting that has to be
// mended; once it is, the feed works by itself.
func TestConnect_EachWayIn(t *testing.T) {
	for _, c := range entrances() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNATSD(t)
			conf, to, mend := c.make(t, n)
			n.start(t, conf)
			f, r, _ := opened(t, registration.FeedOptions{Connect: to, Stream: registration.StreamOptions{CheckEvery: time.Second}})
			a := entry("a", "10.0.0.1", 80, time.Hour)
			f.Replace(wanted(a))
			var reason string
			defer func() { t.Logf("it said: %s", reason) }()
			eventually(t, "the feed says what to mend", func() bool {
				reason = f.State().Reason
				return strings.Contains(reason, c.says)
			})
			if s := f.State(); s.Up || strings.Contains(s.Reason, "s3cret") || strings.Contains(s.Reason, "guess") {
				t.Errorf("it is %+v", s)
			}
			if c := f.Counts(); c.Pending != 1 || c.Publishes != 0 {
				t.Errorf("before it is mended: %+v", c)
			}
			mend()
			r.until(t, "it is published", has(a))
			eventually(t, "the feed is up", func() bool { return f.State().Up })
		})
	}
}

// byURL has the server learn the right secret later.
func byURL(door, who string) func(*testing.T, *natsd) (string, registration.ConnectOptions, func()) {
	return func(t *testing.T, n *natsd) (string, registration.ConnectOptions, func()) {
		admits := func(secret string) string { return "authorization: {" + fmt.Sprintf(door, secret) + "}" }
		right := admits("s3cret")
		if who == "" {
			right = "" // it admits everybody
		}
		return admits("another"), registration.ConnectOptions{URL: "nats://" + who + n.addr}, func() { n.reconfigure(t, right) }
	}
}

// contextFile writes a context of the nats command.
func contextFile(t *testing.T, n *natsd, settings map[string]string) string {
	t.Helper()
	all := map[string]string{"url": "nats://" + n.addr}
	for key, value := range settings {
		all[key] = value
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, filepath.Join(n.dir, "context.json"), string(text))
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func byContext(conf string, wrong, right map[string]string) func(*testing.T, *natsd) (string, registration.ConnectOptions, func()) {
	return func(t *testing.T, n *natsd) (string, registration.ConnectOptions, func()) {
		n.domain = right["jetstream_domain"]
		return conf, registration.ConnectOptions{Context: contextFile(t, n, wrong)}, func() { contextFile(t, n, right) }
	}
}

// keys makes a key pair, and returns its public key and its seed.
func keys(t *testing.T, create func() (nkeys.KeyPair, error)) (pair nkeys.KeyPair, public string, seed []byte) {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	if seed, err = pair.Seed(); err != nil {
		t.Fatal(err)
	}
	return pair, public, seed
}

func byNKey(t *testing.T, n *natsd) (string, registration.ConnectOptions, func()) {
	_, public, seed := keys(t, nkeys.CreateUser)
	_, _, stranger := keys(t, nkeys.CreateUser)
	file := writeFile(t, filepath.Join(n.dir, "seed"), string(stranger))
	return fmt.Sprintf("authorization: {users: [{nkey: %s}]}", public),
		registration.ConnectOptions{Context: contextFile(t, n, map[string]string{"nkey": file})},
		func() { writeFile(t, file, string(seed)) }
}

// byCredentials has users with JWTs of an operator; the wrong one is of an account that nobody knows.
func byCredentials(context bool) func(*testing.T, *natsd) (string, registration.ConnectOptions, func()) {
	return func(t *testing.T, n *natsd) (string, registration.ConnectOptions, func()) {
		operator, operatorKey, _ := keys(t, nkeys.CreateOperator)
		account, accountKey, _ := keys(t, nkeys.CreateAccount)
		_, systemKey, _ := keys(t, nkeys.CreateAccount)
		stranger, _, _ := keys(t, nkeys.CreateAccount)
		claims := jwt.NewAccountClaims(accountKey)
		claims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1, Streams: -1, Consumer: -1}
		conf := fmt.Sprintf("operator: %s\nresolver: MEMORY\nsystem_account: %s\nresolver_preload: {%s: %s, %s: %s}",
			signed(t, jwt.NewOperatorClaims(operatorKey), operator), systemKey,
			systemKey, signed(t, jwt.NewAccountClaims(systemKey), operator), accountKey, signed(t, claims, operator))
		file := writeFile(t, filepath.Join(n.dir, "user.creds"), credentials(t, stranger))
		to := registration.ConnectOptions{URL: "nats://" + n.addr, Credentials: file}
		if context {
			to = registration.ConnectOptions{Context: contextFile(t, n, map[string]string{"creds": file})}
		}
		return conf, to, func() { writeFile(t, file, credentials(t, account)) }
	}
}

func signed(t *testing.T, claims jwt.Claims, by nkeys.KeyPair) string {
	t.Helper()
	text, err := claims.Encode(by)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// credentials are those of a new user of an account.
func credentials(t *testing.T, account nkeys.KeyPair) string {
	t.Helper()
	_, public, seed := keys(t, nkeys.CreateUser)
	text, err := jwt.FormatUserConfig(signed(t, jwt.NewUserClaims(public), account), seed)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// authority issues certificates, into files.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	text string // of its certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, key := a.sign(template, template, nil)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, a.key, a.text = cert, key, asPEM("CERTIFICATE", der)
	return a
}

func asPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func (a *authority) sign(template, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	template.NotAfter = time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

// issue writes a certificate for the loopback and its key to files.
func (a *authority) issue(dir, name string) (cert, key string) {
	a.t.Helper()
	der, private := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, a.key)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	base := filepath.Join(dir, name)
	return writeFile(a.t, base+".crt", asPEM("CERTIFICATE", der)), writeFile(a.t, base+".key", asPEM("PRIVATE KEY", secret))
}

func byAuthority(t *testing.T, n *natsd) (string, registration.ConnectOptions, func()) {
	ours, others := newAuthority(t), newAuthority(t)
	cert, key := ours.issue(n.dir, "server")
	file := writeFile(t, filepath.Join(n.dir, "ca.crt"), others.text)
	return fmt.Sprintf("tls: {cert_file: %q, key_file: %q}", cert, key),
		registration.ConnectOptions{Context: contextFile(t, n, map[string]string{"ca": file})},
		func() { writeFile(t, file, ours.text) }
}

// mutual is a server that wants certificates of an authority.
func mutual(n *natsd, a *authority) (conf, ca string) {
	cert, key := a.issue(n.dir, "server")
	ca = writeFile(a.t, filepath.Join(n.dir, "ca.crt"), a.text)
	return fmt.Sprintf("tls: {cert_file: %q, key_file: %q, ca_file: %q, verify: true}", cert, key, ca), ca
}

func byCertificate(t *testing.T, n *natsd) (string, registration.ConnectOptions, func()) {
	a := newAuthority(t)
	conf, ca := mutual(n, a)
	return conf, registration.ConnectOptions{Context: contextFile(t, n, map[string]string{"ca": ca})}, func() {
		cert, key := a.issue(n.dir, "client")
		contextFile(t, n, map[string]string{"ca": ca, "cert": cert, "key": key})
	}
}

func byOthersCertificate(t *testing.T, n *natsd) (string, registration.ConnectOptions, func()) {
	a := newAuthority(t)
	conf, ca := mutual(n, a)
	cert, key := newAuthority(t).issue(n.dir, "client")
	return conf, registration.ConnectOptions{Context: contextFile(t, n, map[string]string{"ca": ca, "cert": cert, "key": key})},
		func() { a.issue(n.dir, "client") }
}
