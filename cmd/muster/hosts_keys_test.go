package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/keyfile"
	"github.com/muster-cloud/muster/registry/auth"
)

// from returns a client that calls the server from a host, by TLS.
func (h *hosts) from(k int, key string, trust auth.Trust) *client.Client {
	h.t.Helper()
	api, err := client.New(client.Options{
		URL: "https://" + addressOf(hostServer) + ":9000", Key: key, Tries: 1,
		Trust: func() auth.Trust { return trust }, Transport: h.net.transport(k),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = api.Close() })
	return api
}

// credentials are those in a node's state directory, as a thief has them.
func (l *lightNode) credentials(t *testing.T) *agent.Credentials {
	t.Helper()
	c, err := agent.OpenCredentials(l.state)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// viewer makes a key that reads.
func (h *hosts) viewer(name string) string {
	h.t.Helper()
	made, err := h.api.CreateAccessKey(h.t.Context(), muster.CreateAccessKeyInput{Name: name, Role: muster.Viewer})
	if err != nil || made.Text == nil {
		h.t.Fatal("no key", err)
	}
	return *made.Text
}

// scrape reads the server's metrics from a host, as Prometheus does with a bearer_token and the server's ca.crt.
func (h *hosts) scrape(k int, key string) (int, numbers) {
	h.t.Helper()
	authorities, err := os.ReadFile(filepath.Join(h.dir, "server", "ca", "ca.crt"))
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(authorities) {
		h.t.Fatal("the server's authorities cannot be read", err)
	}
	transport := h.net.transport(k)
	transport.DisableKeepAlives = true
	transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	request, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, "https://"+addressOf(hostServer)+":9000/metrics", nil)
	if err != nil {
		h.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+key)
	response, err := transport.RoundTrip(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode, readMetrics(response.Body)
}

// cli runs a command on the server's host, as its root.
func (h *hosts) cli(args ...string) (string, error) {
	process := h.net.command(hostServer, args...)
	process.Env = append(os.Environ(), "MUSTER_SERVER=http://127.0.0.1:9000", "MUSTER_KEY_FILE="+filepath.Join(h.dir, "server", "admin.key"))
	out, err := process.CombinedOutput()
	return string(out), err
}

func (h *hosts) mustCLI(args ...string) string {
	h.t.Helper()
	out, err := h.cli(args...)
	if err != nil {
		h.t.Fatalf("muster %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// subject is a node that calls are about.
type subject struct {
	id          string
	uid         muster.NodeUID
	incarnation int64
}

// ofAgents is what agents call, for a node.
func ofAgents() map[string]func(context.Context, *client.Client, subject) error {
	return map[string]func(context.Context, *client.Client, subject) error{
		"a beat": func(ctx context.Context, c *client.Client, s subject) error {
			_, err := c.Heartbeat(ctx, muster.HeartbeatInput{UID: s.uid, Incarnation: s.incarnation})
			return err
		},
		"its assignments": func(ctx context.Context, c *client.Client, s subject) error {
			_, err := c.Assignments(ctx, s.uid, s.incarnation)
			return err
		},
		"its peers": func(ctx context.Context, c *client.Client, s subject) error {
			_, err := c.Peers(ctx, s.uid, s.incarnation)
			return err
		},
		"an answer": func(ctx context.Context, c *client.Client, s subject) error {
			_, err := c.AnswerAgentRequest(ctx, muster.AgentAnswerInput{UID: s.uid, Incarnation: s.incarnation, ID: 1})
			return err
		},
	}
}

// beyond is what a stolen key is tried for on another node, apart from ofAgents: on the node's own it would get in
// the way of the agent.
func beyond() map[string]func(context.Context, *client.Client, subject) error {
	register := func(ctx context.Context, c *client.Client, s subject, uid *muster.NodeUID) error {
		_, err := c.RegisterNode(ctx, muster.RegisterNodeInput{
			ID: muster.NodeID(s.id), UID: uid, Hostname: s.id, Addr: addressOf(2), Port: 8080, Incarnation: s.incarnation + 1, Role: muster.Compute,
			CPUCount: 1, MemoryMB: 128, Images: []string{}, Instances: []muster.InstanceReportInput{},
		})
		return err
	}
	return map[string]func(context.Context, *client.Client, subject) error{
		"a registration":  func(ctx context.Context, c *client.Client, s subject) error { return register(ctx, c, s, &s.uid) },
		"one by the name": func(ctx context.Context, c *client.Client, s subject) error { return register(ctx, c, s, nil) },
		"what it is asked for": func(ctx context.Context, c *client.Client, s subject) error {
			return c.AgentRequests(ctx, s.uid, s.incarnation, func(muster.AgentRequest) {})
		},
		"a report": func(ctx context.Context, c *client.Client, s subject) error {
			_, err := c.ReportInstances(ctx, muster.ReportInstancesInput{UID: s.uid, Incarnation: s.incarnation, Sequence: 1 << 40})
			return err
		},
	}
}

// ofPeople is what a VIEWER, OPERATOR or ADMIN calls.
func ofPeople(web *client.Instance) map[string]func(context.Context, *client.Client) error {
	page := muster.PageInput{}
	return map[string]func(context.Context, *client.Client) error{
		"nodes":     func(ctx context.Context, c *client.Client) error { _, err := c.Nodes(ctx, nil, page); return err },
		"a node":    func(ctx context.Context, c *client.Client) error { _, err := c.Node(ctx, "heavy"); return err },
		"instances": func(ctx context.Context, c *client.Client) error { _, err := c.Instances(ctx, nil, page); return err },
		"services":  func(ctx context.Context, c *client.Client) error { _, err := c.Services(ctx, nil, page); return err },
		"volumes":   func(ctx context.Context, c *client.Client) error { _, err := c.Volumes(ctx, nil, page); return err },
		"images":    func(ctx context.Context, c *client.Client) error { _, err := c.Images(ctx, page); return err },
		"changes": func(ctx context.Context, c *client.Client) error {
			_, err := c.Changes(ctx, client.ChangesInput{First: 1})
			return err
		},
		"health":     func(ctx context.Context, c *client.Client) error { _, err := c.ClusterHealth(ctx); return err },
		"the audit":  func(ctx context.Context, c *client.Client) error { _, err := c.AuditLog(ctx, nil, page); return err },
		"the keys":   func(ctx context.Context, c *client.Client) error { _, err := c.AccessKeys(ctx, page); return err },
		"the tokens": func(ctx context.Context, c *client.Client) error { _, err := c.JoinTokens(ctx); return err },
		"a watch": func(ctx context.Context, c *client.Client) error {
			return c.WatchHealth(ctx, nil, client.WatchOptions{}, func(client.Event) error { return nil })
		},
		"a log": func(ctx context.Context, c *client.Client) error {
			return c.InstanceLogs(ctx, web.ID, client.LogOptions{}, func(muster.LogPiece) error { return nil })
		},
		"a launch": func(ctx context.Context, c *client.Client) error {
			_, err := c.LaunchInstance(ctx, muster.LaunchInstanceInput{Type: muster.Nano, Image: "minimal"})
			return err
		},
		"a termination": func(ctx context.Context, c *client.Client) error {
			_, err := c.TerminateInstance(ctx, web.ID)
			return err
		},
		"an invitation": func(ctx context.Context, c *client.Client) error {
			_, err := c.CreateJoinToken(ctx, muster.CreateJoinTokenInput{})
			return err
		},
	}
}

func subjectOf(n *client.Node) subject { return subject{string(n.ID), n.UID, n.Incarnation} }

// keyStolen has somebody on another host use a copy of a node's key.
func (h *hosts) keyStolen(t *testing.T) {
	victim, other := h.await(h.light[0], 1), h.await(h.heavy, 1)
	stolen := h.light[0].credentials(t)
	thief := h.from(2, stolen.Key(), stolen.Trust())
	web := h.launch(h.heavy, muster.Nano, muster.Running, "exec sleep 600")
	before, err := h.api.ServerInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, call := range ofAgents() {
		if err := call(t.Context(), thief, subjectOf(victim)); err != nil {
			t.Errorf("%s of its own node: %v", what, err) // else the refusals say nothing
		}
		if err := call(t.Context(), thief, subjectOf(other)); muster.CodeOf(err) != muster.Forbidden {
			t.Errorf("%s of another node: %v", what, err)
		}
	}
	for what, call := range beyond() {
		if err := call(t.Context(), thief, subjectOf(other)); muster.CodeOf(err) != muster.Forbidden {
			t.Errorf("%s of another node: %v", what, err)
		}
	}
	for what, call := range ofPeople(web) {
		if err := call(t.Context(), thief); muster.CodeOf(err) != muster.Forbidden {
			t.Errorf("%s: %v", what, err)
		}
	}
	if status, _ := h.scrape(2, stolen.Key()); status != http.StatusForbidden {
		t.Errorf("the metrics: %d", status)
	}
	if status, read := h.scrape(2, h.viewer("prometheus")); status != http.StatusOK || len(read) < 20 {
		t.Errorf("a VIEWER reads %d metrics, %d", len(read), status)
	}
	h.nothingHappened(t, before)
	h.refusedInAudit(t, stolen.Key())
}

// nothingHappened fails if nodes, instances or services have changed since.
func (h *hosts) nothingHappened(t *testing.T, since *client.ServerInfo) {
	t.Helper()
	changes, err := h.api.Changes(t.Context(), client.ChangesInput{Since: since.Cursor, First: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range changes.Edges {
		t.Errorf("%s %s changed: %s", e.Node.Kind, e.Node.ObjectID, e.Node.Reason)
	}
}

// refusedInAudit wants the attempts that a key was refused in the audit, as the command shows it.
func (h *hosts) refusedInAudit(t *testing.T, key string) {
	t.Helper()
	parsed, err := auth.ParseKey(key)
	if err != nil {
		t.Fatal(err)
	}
	var out string
	until(t, "the refusals are in the audit", func() bool { // they are collected for a second
		out = h.mustCLI("audit", "--refused", "--key", parsed.ID)
		return strings.Contains(out, "createJoinToken") && strings.Contains(out, addressOf(2))
	})
	if strings.Contains(out, addressOf(hostServer)) {
		t.Errorf("the audit of %s has what others were refused: %s", parsed.ID, out)
	}
}

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

// keyRevoked revokes a node's key: the node is out at once. Its machine is reinstalled, and joins under its old name
// once that is forgotten.
func (h *hosts) keyRevoked(t *testing.T) {
	l := h.light[1]
	node, had := h.await(l, 1), l.credentials(t)
	key, err := auth.ParseKey(had.Key())
	if err != nil {
		t.Fatal(err)
	}
	reader := h.viewer("reader")
	_, before := h.scrape(1, reader)
	thief := h.from(1, had.Key(), had.Trust())
	said := h.saidBy(t)
	h.mustCLI("key", "revoke", key.ID)
	revoked := time.Now()
	if _, err := thief.Heartbeat(t.Context(), muster.HeartbeatInput{UID: node.UID, Incarnation: node.Incarnation}); muster.CodeOf(err) != muster.Unauthenticated || !strings.Contains(err.Error(), key.ID+" (node light2) was revoked") {
		t.Errorf("a beat right after it: %v", err)
	}
	until(t, "its stream has ended", func() bool {
		_, now := h.scrape(1, reader)
		return now["muster_transport_streams"] == before["muster_transport_streams"]-1
	})
	if took := time.Since(revoked); took > time.Second {
		t.Errorf("its stream ended after %s", took)
	}
	err = l.agent.Wait()
	l.agent = nil
	if err == nil {
		t.Error("its agent ended as if all were well")
	}
	for _, want := range []string{key.ID + " (node light2) was revoked", "muster token create", "muster agent --join TOKEN@HOST"} {
		if now := said(); !strings.Contains(now, want) {
			t.Errorf("its agent says %q, want %q in it", now, want)
		}
	}
	l.reinstall(t)
	if again := h.await(l, 1); again.UID == node.UID || l.credentials(t).Key() == had.Key() {
		t.Errorf("it is %s again, by its old key", again.UID)
	}
	h.launch(l, muster.Nano, muster.Stopped, "true")
}

// saidBy returns what agents and server have said since, whenever it is called.
func (h *hosts) saidBy(t *testing.T) func() string {
	t.Helper()
	info, err := os.Stat(h.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	return func() string {
		file, err := os.Open(h.log.Name())
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		text, err := io.ReadAll(io.NewSectionReader(file, info.Size(), 1<<30))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

// reinstall begins anew with the machine: at first its name is that of the node that it was.
func (l *lightNode) reinstall(t *testing.T) {
	t.Helper()
	if err := os.RemoveAll(l.state); err != nil {
		t.Fatal(err)
	}
	command(t, "muster", "image", "build-minimal", "--state-dir", l.state)
	l.join = l.invite()
	said := l.saidBy(t)
	l.start(t, "muster")
	err := l.agent.Wait()
	l.agent = nil
	for _, want := range []string{"the name light2 is that of the node at " + addressOf(l.k), "last seen " + strconv.Itoa(time.Now().UTC().Year()), "muster node forget light2"} {
		if now := said(); err == nil || !strings.Contains(now, want) {
			t.Errorf("it ends with %v and says %q, want %q in it", err, now, want)
		}
	}
	if out, err := l.cli("node", "forget", "light2"); err != nil && !strings.Contains(out, "muster node remove light2") {
		t.Errorf("to forget it: %v, %s", err, out)
	} else if err != nil {
		l.mustCLI("node", "remove", "light2")
		l.mustCLI("node", "forget", "light2")
	}
	l.start(t, "muster") // the token was not used up
}
