package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registration"
)

const natsToken = "s3cret"

// runNATS is a NATS server in a process of its own: natsd DIRECTORY ADDRESS. It ends when nobody holds its
// standard input any more.
func runNATS() {
	e, err := registration.NewEmbedded(registration.EmbeddedOptions{Dir: os.Args[1], Listen: os.Args[2], Token: natsToken})
	if err == nil {
		err = e.Heal(context.Background())
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// natsd is a NATS server that can be killed, or the one in a muster server that others reach.
type natsd struct {
	t       *testing.T
	dir     string
	addr    string
	process *exec.Cmd
}

func newNATS(t *testing.T) *natsd {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	n := &natsd{t: t, dir: t.TempDir(), addr: "127.0.0.1:" + port}
	t.Cleanup(n.kill)
	return n
}

func (n *natsd) url() string { return "nats://" + natsToken + "@" + n.addr }

func (n *natsd) start() {
	n.t.Helper()
	n.process = exec.Command("natsd", n.dir, n.addr)
	n.process.Stderr = os.Stderr
	if _, err := n.process.StdinPipe(); err != nil {
		n.t.Fatal(err)
	}
	out, err := n.process.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.process.Start(); err != nil {
		n.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		n.t.Fatalf("the NATS server says %q, %v", line, err)
	}
}

// kill ends it as kill -9 does.
func (n *natsd) kill() {
	if n.process != nil {
		_ = n.process.Process.Kill()
		_ = n.process.Wait()
		n.process = nil
	}
}

func (n *natsd) wipe() {
	n.t.Helper()
	if err := os.RemoveAll(n.dir); err != nil {
		n.t.Fatal(err)
	}
}

// reader looks into the feed from outside, and writes there as others do.
type reader struct {
	t      *testing.T
	stream *registration.Stream
	nats   *nats.Conn
	js     jetstream.JetStream
}

func (n *natsd) reader() *reader {
	n.t.Helper()
	conn, err := registration.Connect(registration.ConnectOptions{URL: n.url()})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(conn.Close)
	raw, err := nats.Connect(n.url(), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(raw.Close)
	js, err := jetstream.New(raw)
	if err != nil {
		n.t.Fatal(err)
	}
	return &reader{n.t, registration.NewStream(conn, registration.StreamOptions{}), raw, js}
}

// held are the entries in the stream, by their subjects.
func (r *reader) held() (map[string]registration.Message, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	all, err := registration.Held(ctx, r.stream)
	entries := map[string]registration.Message{}
	for _, m := range all {
		if m.Gone == "" {
			entries[m.Subject] = m
		}
	}
	return entries, err
}

// publish writes an entry as another cluster does.
func (r *reader) publish(origin string, e muster.Registration) {
	r.t.Helper()
	held, err := r.held()
	if err != nil {
		r.t.Fatal(err)
	}
	after := held[registration.Subject(&e)].Sequence
	if _, err := registration.NewJetStream(r.stream, origin).Publish(r.t.Context(), &e, after); err != nil {
		r.t.Fatal(err)
	}
}

// send writes whatever it is told to.
func (r *reader) send(subject, data string, headers map[string]string) {
	r.t.Helper()
	m := &nats.Msg{Subject: subject, Data: []byte(data), Header: nats.Header{"Nats-Rollup": {"sub"}}}
	for name, value := range headers {
		m.Header.Set(name, value)
	}
	if _, err := r.js.PublishMsg(r.t.Context(), m); err != nil {
		r.t.Fatal(err)
	}
}

// differs compares what is looked up with what the stream holds, subject by subject, and says what differs.
func (r *reader) differs(c *client.Client, own string) string {
	held, err := r.held()
	if err != nil {
		return err.Error()
	}
	found, err := c.Registrations(r.t.Context(), muster.RegistrationFilter{}, false)
	if err != nil {
		return err.Error()
	}
	var differs []string
	if !found.Complete {
		differs = append(differs, "the answer is not complete")
	}
	for _, e := range found.Entries {
		subject := registration.Subject(&muster.Registration{Cluster: e.Cluster, Protocol: e.Protocol, Service: e.Service, Address: e.Address, Port: e.Port})
		m, there := held[subject]
		delete(held, subject)
		if !there || e.Own != (m.Origin == own) || m.Entry == nil || m.Entry.Priority != e.Priority {
			differs = append(differs, fmt.Sprintf("%s is looked up as %+v and held as %+v", subject, e, m))
		}
	}
	for subject := range held {
		differs = append(differs, subject+" is held and not looked up")
	}
	return strings.Join(differs, "\n")
}

// tokenFile is a file with what others present to a server's own NATS server.
func tokenFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(natsToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// purge takes the last message of a subject away, without a word to those who watch.
func (r *reader) purge(subject string) error {
	s, err := r.js.Stream(r.t.Context(), registration.DefaultStream)
	if err != nil {
		return err
	}
	return s.Purge(r.t.Context(), jetstream.WithPurgeSubject(subject))
}
