package server_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/server"
)

// quick are thresholds that a test can wait for.
func quick(listen string) server.Options {
	return server.Options{
		Listen: listen, Insecure: true, MaxConnections: 3,
		HeartbeatInterval: 200 * time.Millisecond, UnhealthyAfter: 400 * time.Millisecond,
		PruneAfter: time.Hour, SweepInterval: 20 * time.Millisecond,
	}
}

func TestServer_AsksItsOwnPort(t *testing.T) {
	for listen, host := range map[string]string{
		"127.0.0.1:0": "127.0.0.1", "[::1]:0": "::1", "0.0.0.0:0": "127.0.0.1", ":0": "127.0.0.1", "[::]:0": "::1", "localhost:0": "localhost",
	} {
		t.Run(listen, func(t *testing.T) {
			o := quick(listen)
			o.DataDir = t.TempDir()
			s := open(t, o)
			defer run(t, s)()
			_, port, err := net.SplitHostPort(s.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			c := clientAt(t, net.JoinHostPort(host, port), firstKey(t, o.DataDir))
			register(t, c, "127.0.0.1", 1)
			// Silence is believed only where the port answers.
			eventually(t, "the silent node is UNHEALTHY", func() bool {
				n, err := c.Node(t.Context(), "n1")
				return err == nil && n.Status == muster.Unhealthy
			})
		})
	}
}

// firstKey is the key that a server made at its first start; empty where it asks for none.
func firstKey(t *testing.T, dir string) (key string) {
	t.Helper()
	eventually(t, "the server is ready", func() bool {
		text, err := os.ReadFile(server.AdminKeyFile(dir))
		key = strings.TrimSpace(string(text))
		return err == nil
	})
	return key
}

// clientAt returns a client whose connections end with each call.
func clientAt(t *testing.T, addr, key string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{URL: "http://" + addr, Key: key, Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestServer_PostponesExpiryWhileItsPortDoesNotAnswer(t *testing.T) {
	s := open(t, quick(""))
	defer run(t, s)()
	c := clientAt(t, s.Addr().String(), "")
	register(t, c, "127.0.0.1", 1)
	// Every connection that there is room for is taken, and one stays to ask on.
	asking, err := client.New(client.Options{URL: "http://" + s.Addr().String(), Transport: &http.Transport{MaxConnsPerHost: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer asking.Close()
	held := func(name muster.ConditionName) bool {
		h, err := asking.ClusterHealth(t.Context())
		return err == nil && slices.ContainsFunc(h.Conditions, func(c client.Condition) bool { return c.Name == name })
	}
	eventually(t, "the server answers", func() bool { _, err := asking.ServerInfo(t.Context()); return err == nil })
	var taken []net.Conn
	eventually(t, "expiry is postponed", func() bool {
		taken = append(taken, dial(t, s)) // one may have come while the server asked itself
		return held(muster.ExpiryPostponed)
	})
	for _, conn := range taken {
		conn.Close()
	}
	eventually(t, "expiry goes on", func() bool { return !held(muster.ExpiryPostponed) })
}

// A server that stops has closed its port itself.
func TestServer_DoesNotPostponeExpiryWhileItStops(t *testing.T) {
	o := quick("127.0.0.1:0")
	o.DataDir = t.TempDir()
	o.Logger = slog.New(slog.DiscardHandler)
	s, err := server.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, s)
	slow := dial(t, s) // a request in flight keeps the server from stopping
	if _, err := io.WriteString(slow, "POST /graphql HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	before := s.Addr().String()
	time.AfterFunc(2*time.Second, func() { slow.Close() })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.Listen, o.Keyless = before, true
	again := open(t, o)
	defer run(t, again)()
	c := clientAt(t, before, "")
	changes, err := c.Changes(context.Background(), client.ChangesInput{})
	if err != nil {
		t.Fatal(err)
	}
	if len(changes.Edges) != 0 {
		t.Errorf("the stop left %d changes: %+v", len(changes.Edges), changes.Edges[0])
	}
}
