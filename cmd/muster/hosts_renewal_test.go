package main

import (
	"context"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/keyfile"
	"github.com/muster-cloud/muster/registry/auth"
)

// complaints counts what the agents and the server have warned of, such as a beat that was not taken.
func (h *hosts) complaints(t *testing.T) (all int) {
	t.Helper()
	logs, err := os.ReadFile(h.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	journal := h.heavy.Run(t, "journalctl", "-q", "-o", "cat", "-u", "muster-agent.service")
	if !strings.Contains(string(logs), "the node is registered") || !strings.Contains(journal, "the node is registered") {
		t.Fatal("these are not the logs of the agents")
	}
	for _, level := range []string{"level=WARN", "level=ERROR"} {
		all += strings.Count(string(logs), level) + strings.Count(journal, level)
	}
	return all
}

// beatOn returns once every node has beaten that many times more.
func (h *hosts) beatOn(t *testing.T, times int) {
	t.Helper()
	seen := map[string]map[time.Time]bool{}
	until(t, "every node beats on", func() bool {
		done := 0
		for _, n := range h.nodes() {
			node, err := h.api.Node(t.Context(), n.id())
			if err != nil || node.LastSeen == nil {
				return false
			}
			if seen[n.id()] == nil {
				seen[n.id()] = map[time.Time]bool{}
			}
			if seen[n.id()][*node.LastSeen] = true; len(seen[n.id()]) > times {
				done++
			}
		}
		return done == len(h.nodes())
	})
}

// onlooker watches nodes until the test ends, and complains when it is cut off.
type onlooker struct{ told chan client.Event }

func lookOn(t *testing.T, api *client.Client) *onlooker {
	t.Helper()
	f := &onlooker{told: make(chan client.Event, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- api.WatchNodes(ctx, nil, client.WatchOptions{
			OnDisconnect: func(err error, _ time.Duration) { t.Errorf("the watch was cut off: %v", err) },
		}, func(e client.Event) error { f.told <- e; return nil })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended: %v", err)
		}
	})
	f.await(t, "the present state", func(e client.Event) bool { return e.Type == muster.EventSynced })
	return f
}

func (f *onlooker) await(t *testing.T, what string, is func(client.Event) bool) {
	t.Helper()
	for late := time.After(30 * time.Second); ; {
		select {
		case e := <-f.told:
			if is(e) {
				return
			}
		case <-late:
			t.Fatalf("the watch does not tell of %s", what)
		}
	}
}

// authorityReplaced replaces the certificate authority, twice, while agents beat and somebody watches who has pinned
// the first one.
func (h *hosts) authorityReplaced(t *testing.T) {
	key, first := h.viewer("watcher"), h.light[0].credentials(t).Trust()
	pinned := auth.Trust{Pin: auth.PinOf(first.Roots[0])}
	watches := []*onlooker{lookOn(t, h.from(2, key, pinned))}
	complaints := h.complaints(t)
	_, before := h.scrape(1, key)
	h.beatOn(t, 1)
	for turn := range 2 {
		if out := h.mustCLI("ca", "rotate"); strings.Count(out, "\n") != turn+3 {
			t.Errorf("the authorities after turn %d: %s", turn, out)
		}
		h.beatOn(t, 2)
		watches = append(watches, lookOn(t, h.from(2, key, pinned))) // a new connection goes by the pin, too
	}
	for _, n := range h.nodes() { // each nudge is a connection by the newest authority, to an agent of the first one
		h.launch(n, muster.Nano, muster.Stopped, "true")
	}
	_, after := h.scrape(1, key)
	if sent, lost := after["muster_server_nudges_total"]-before["muster_server_nudges_total"], after["muster_server_nudges_failed_total"]-before["muster_server_nudges_failed_total"]; sent < 3 || lost != 0 {
		t.Errorf("%v nudges were taken, %v got lost", sent, lost)
	}
	if _, err := h.api.LabelNode(t.Context(), muster.LabelInput{ID: "heavy", Set: muster.Map{"authority": "third"}}); err != nil {
		t.Fatal(err)
	}
	for _, w := range watches {
		w.await(t, "a label", func(e client.Event) bool { return e.Node != nil && e.Node.Labels["authority"] == "third" })
	}
	if now := h.complaints(t); now != complaints {
		t.Errorf("there were %d warnings, such as of beats that were not taken", now-complaints)
	}
}

// certificateRenewed gives a node the certificate that it would have after three weeks: the agent that finds it gets
// the next one, and learns of the newest authority, while it beats.
func (h *hosts) certificateRenewed(t *testing.T) {
	l := h.light[0]
	node := h.await(l, 1)
	l.stop()
	l.age(t, 21*24*time.Hour)
	complaints := h.complaints(t)
	l.start(t, "muster")
	h.await(l, node.Incarnation+1)
	var roots []*x509.Certificate
	until(t, "it has a certificate for the next month", func() bool {
		own, err := auth.DecodeBundle(l.file(t, "node.crt"))
		if err != nil {
			t.Fatal(err)
		}
		roots, err = auth.DecodeBundle(l.file(t, "ca.crt"))
		return err == nil && len(roots) == 3 && time.Until(own[0].NotAfter) > 29*24*time.Hour
	})
	h.beatOn(t, 2)
	_, before := h.scrape(1, h.viewer("scraper"))
	h.launch(l, muster.Nano, muster.Stopped, "true") // its port presents the new one
	if _, after := h.scrape(1, h.viewer("scraper")); after["muster_server_nudges_total"] == before["muster_server_nudges_total"] {
		t.Error("it took no nudge")
	}
	if now := h.complaints(t); now != complaints {
		t.Errorf("there were %d warnings, such as of beats that were not taken", now-complaints)
	}
}

func (l *lightNode) file(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(l.state, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// age puts a certificate in the place of the node's that was issued so long ago.
func (l *lightNode) age(t *testing.T, by time.Duration) {
	t.Helper()
	text, err := keyfile.Read(filepath.Join(l.dir, "server", "ca", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := auth.DecodeCA(text)
	if err != nil {
		t.Fatal(err)
	}
	key, err := auth.DecodeKey(l.file(t, "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	wish := auth.Wish{Public: key.Public(), Identity: auth.NodeIdentity(ca.ClusterUID(), l.credentials(t).UID())}
	old, err := ca.Issue(wish, time.Now().Add(-by))
	if err != nil {
		t.Fatal(err)
	}
	if err := keyfile.Write(filepath.Join(l.state, "node.crt"), auth.EncodeBundle([]*x509.Certificate{old})); err != nil {
		t.Fatal(err)
	}
}
