package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry/auth"
)

const clusterUID = "0123456789abcdef"

func newCA(t *testing.T, now time.Time) *auth.CA {
	t.Helper()
	ca, err := auth.NewCA(clusterUID, now)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// certificate is one of a server.
func certificate(t *testing.T, ca *auth.CA, now time.Time) *tls.Config {
	t.Helper()
	key, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(auth.Wish{Public: key.Public(), Identity: auth.ServerIdentity(clusterUID), Names: []string{"muster.test"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: append([][]byte{leaf.Raw}, ca.Chain()...), PrivateKey: key}}}
}

// serveTLS is serve, by TLS.
func serveTLS(t *testing.T, handler http.Handler, config *tls.Config, o client.Options) *client.Client {
	t.Helper()
	network := newPipes()
	server := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(tls.NewListener(network, config))
	}()
	o.Transport = &http.Transport{DialContext: network.DialContext}
	o.Tries = 1
	if o.URL == "" {
		o.URL = "https://muster.test"
	}
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		<-done
	})
	return c
}

// greeter answers calls, and what is said at the beginning of a WebSocket.
type greeter struct {
	requests atomic.Int64
	headers  chan string
	payloads chan string
}

func newGreeter() *greeter {
	return &greeter{headers: make(chan string, 10), payloads: make(chan string, 10)}
}

func (g *greeter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.requests.Add(1)
	g.headers <- r.Header.Get("Authorization")
	if !websocket.IsWebSocketUpgrade(r) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"data":{"serverInfo":{"clusterUid":"c","version":"v"}}}`)
		return
	}
	conn, err := (&websocket.Upgrader{Subprotocols: []string{"graphql-transport-ws"}}).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	var hello struct {
		Payload json.RawMessage `json:"payload"`
	}
	if conn.ReadJSON(&hello) == nil {
		g.payloads <- string(hello.Payload)
	}
	_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(4403, "the key was revoked"), time.Now().Add(time.Second))
	_, _ = io.Copy(io.Discard, conn.NetConn()) // until the client has closed: a pipe takes only what is read
}

func trust(t auth.Trust) client.TrustFunc { return func() auth.Trust { return t } }

func watchOnce(t *testing.T, c *client.Client) error {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return c.WatchNodes(ctx, nil, client.WatchOptions{}, func(client.Event) error { return nil })
}

func TestClient_TrustsTheServerOfItsCluster(t *testing.T) {
	now := time.Now()
	ca := newCA(t, now)
	next, err := ca.Rotate(now)
	if err != nil {
		t.Fatal(err)
	}
	old := auth.Trust{Roots: ca.Roots()}
	for name, c := range map[string]struct {
		url    string
		trust  auth.Trust
		config *tls.Config
	}{
		"by its authority":           {"https://muster.test", old, certificate(t, ca, now)},
		"by a pin, at any address":   {"wss://192.0.2.1:9000", auth.Trust{Pin: ca.Pin()}, certificate(t, ca, now)},
		"by the authority before":    {"https://other.test/graphql", old, certificate(t, next, now)},
		"by a pin of the one before": {"https://192.0.2.1", auth.Trust{Pin: ca.Pin()}, certificate(t, next, now)},
	} {
		g := newGreeter()
		api := serveTLS(t, g, c.config, client.Options{URL: c.url, Key: "k", Trust: trust(c.trust)})
		if info, err := api.ServerInfo(t.Context()); err != nil || info.ClusterUID != "c" {
			t.Errorf("%s: %+v, %v", name, info, err)
			continue
		}
		if got := <-g.headers; got != "Bearer k" {
			t.Errorf("%s: the key went out as %q", name, got)
		}
		// 4403 is the end of the watch: a key that was revoked stays so.
		if err := watchOnce(t, api); muster.CodeOf(err) != muster.Forbidden || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("%s: the watch ended with %v", name, err)
		}
		if header, payload := <-g.headers, <-g.payloads; header != "Bearer k" || payload != `{"authorization":"Bearer k"}` {
			t.Errorf("%s: the watch began with %q and %s", name, header, payload)
		}
		if n := g.requests.Load(); n != 2 {
			t.Errorf("%s: %d requests", name, n)
		}
	}
}

// Who is in between gets nothing: no request, no key.
func TestClient_SendsNothingToStrangers(t *testing.T) {
	now := time.Now()
	ca, other := newCA(t, now), newCA(t, now)
	for name, c := range map[string]struct {
		trust  client.TrustFunc
		config *tls.Config
		want   string
	}{
		"another authority":           {trust(auth.Trust{Roots: ca.Roots()}), certificate(t, other, now), "somebody may be in between"},
		"another authority, by a pin": {trust(auth.Trust{Pin: ca.Pin()}), certificate(t, other, now), "somebody may be in between"},
		"an expired certificate":      {trust(auth.Trust{Roots: ca.Roots()}), certificate(t, ca, now.AddDate(0, 0, -31)), "compare the clocks"},
		"unknown to the system":       {nil, certificate(t, ca, now), "name its certificate authority"},
	} {
		g := newGreeter()
		api := serveTLS(t, g, c.config, client.Options{Key: "k", Trust: c.trust})
		_, called := api.ServerInfo(t.Context())
		for what, err := range map[string]error{"a call": called, "a watch": watchOnce(t, api)} {
			if muster.CodeOf(err) != muster.Unauthenticated || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		if n := g.requests.Load(); n != 0 {
			t.Errorf("%s: %d requests came through", name, n)
		}
	}
}

// A certificate of one's own is checked by its name, against an authority that is given.
func TestClient_TrustsAnAuthorityOfOnesOwn(t *testing.T) {
	now := time.Now()
	config := certificate(t, newCA(t, now), now)
	leaf, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	only := trust(auth.Trust{Roots: []*x509.Certificate{leaf}})
	if _, err := serveTLS(t, newGreeter(), config, client.Options{Trust: only}).ServerInfo(t.Context()); err != nil {
		t.Error(err)
	}
	elsewhere := serveTLS(t, newGreeter(), config, client.Options{Trust: only, URL: "https://other.test"})
	if _, err := elsewhere.ServerInfo(t.Context()); muster.CodeOf(err) != muster.Unauthenticated {
		t.Errorf("under another name: %v", err)
	}
}

func TestClient_AsksTheTimeOfAServerWhoseCertificateSeemsExpired(t *testing.T) {
	then := time.Now().AddDate(0, 0, -40)
	ca := newCA(t, then)
	config := certificate(t, ca, then)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the key was presented")
		}
		w.Header().Set("Date", then.UTC().Format(http.TimeFormat))
	})
	lenient := serveTLS(t, handler, config, client.Options{Key: "k", Trust: trust(auth.Trust{Pin: ca.Pin(), AnyTime: true})})
	if at, err := lenient.ServerTime(t.Context()); err != nil || !at.Equal(then.Truncate(time.Second)) {
		t.Errorf("%s, %v", at, err)
	}
	strict := serveTLS(t, handler, config, client.Options{Trust: trust(auth.Trust{Pin: ca.Pin()})})
	if _, err := strict.ServerTime(t.Context()); muster.CodeOf(err) != muster.Unauthenticated {
		t.Error(err)
	}
	stranger := serveTLS(t, handler, config, client.Options{Trust: trust(auth.Trust{Pin: newCA(t, then).Pin(), AnyTime: true})})
	if _, err := stranger.ServerTime(t.Context()); muster.CodeOf(err) != muster.Unauthenticated {
		t.Errorf("a stranger may tell the time: %v", err)
	}
	mute := serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header()["Date"] = nil }), config,
		client.Options{Trust: trust(auth.Trust{Pin: ca.Pin(), AnyTime: true})})
	if _, err := mute.ServerTime(t.Context()); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no time was told: %v", err)
	}
}
