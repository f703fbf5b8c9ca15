package main

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"os/exec"
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
	process := h.beside("muster", args...)
	out, err := process.CombinedOutput()
	return string(out), err
}

// beside makes a command that runs on the server's host, where muster is its root.
func (h *hosts) beside(name string, args ...string) *exec.Cmd {
	process := exec.Command("nsenter", append([]string{"--net=/run/netns/" + h.net.host(hostServer), name}, args...)...)
	process.Env = append(os.Environ(), "MUSTER_SERVER=http://127.0.0.1:9000", "MUSTER_KEY_FILE="+filepath.Join(h.dir, "server", "admin.key"))
	return process
}

func (h *hosts) mustCLI(args ...string) string {
	h.t.Helper()
	out, err := h.cli(args...)
	if err != nil {
		h.t.Fatalf("muster %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// keyReplaced gives a node another key, as docs/keys.md says. An instance of its runs on.
func (h *hosts) keyReplaced(t *testing.T, i *client.Instance) {
	l := h.light[1]
	node, had := h.await(l, 1), l.credentials(t)
	key, err := auth.ParseKey(had.Key())
	if err != nil {
		t.Fatal(err)
	}
	made, err := h.api.RotateAccessKey(t.Context(), muster.KeyID(key.ID), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := keyfile.Write(filepath.Join(l.state, "access.key"), []byte(made.Text)); err != nil {
		t.Fatal(err)
	}
	l.stop()
	l.start(t, "muster")
	if again := h.await(l, node.Incarnation+1); again.UID != node.UID || l.credentials(t).Key() != made.Text {
		t.Errorf("it is node %s, was %s", again.UID, node.UID)
	}
	if now, err := h.api.Instance(t.Context(), i.ID); err != nil || now.Status != muster.Running || now.PID == nil || *now.PID != *i.PID {
		t.Errorf("the instance is %+v, %v", now, err)
	}
	thief := h.from(1, had.Key(), had.Trust())
	until(t, "the key that it had opens nothing", func() bool {
		_, err := thief.Assignments(t.Context(), node.UID, node.Incarnation+1)
		return muster.CodeOf(err) == muster.Unauthenticated
	})
	h.beatOn(t, 2)
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
