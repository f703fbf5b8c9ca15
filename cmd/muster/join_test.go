package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// gated is a server that asks for keys, on a network of its own, and those who come to it.
type gated struct {
	t   *testing.T
	net *network
	dir string
	log *os.File
}

// The hosts beside hostServer.
const (
	hostNodeA = 1 + iota
	hostNodeB
	hostBetween // where another server plays the first one
)

func newGated(t *testing.T) *gated {
	t.Helper()
	g := &gated{t: t, net: newNetwork(t, hostBetween), dir: t.TempDir(), log: newLogs(t)}
	t.Cleanup(func() { sweepGroups(g.net.id) })
	return g
}

// serve starts a server on a host and returns a client with its ADMIN key.
func (g *gated) serve(k int) *client.Client {
	g.t.Helper()
	dir := filepath.Join(g.dir, fmt.Sprint("server", k))
	g.net.start(k, g.log, "server", "--data-dir", dir, "--listen", "0.0.0.0:9000", "--keyless=false", "--heartbeat-interval", "1s")
	var key []byte
	until(g.t, "there is an ADMIN key", func() (ok bool) {
		var err error
		key, err = os.ReadFile(filepath.Join(dir, "admin.key"))
		return err == nil
	})
	api, err := client.New(client.Options{URL: "http://127.0.0.1:9000", Key: strings.TrimSpace(string(key)), Transport: g.net.transport(k)})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = api.Close() })
	until(g.t, "the server answers", func() bool { _, err := api.ServerInfo(g.t.Context()); return err == nil })
	return api
}

func (g *gated) token(api *client.Client) string {
	g.t.Helper()
	made, err := api.CreateJoinToken(g.t.Context(), muster.CreateJoinTokenInput{})
	if err != nil {
		g.t.Fatal(err)
	}
	return made.Text
}

// agentArgs are those of the agent of a host.
func (g *gated) agentArgs(k int, more ...string) []string {
	return g.unnamedArgs(k, append([]string{"--id", fmt.Sprint("node", k)}, more...)...)
}

// unnamedArgs leave the node's name to the agent.
func (g *gated) unnamedArgs(k int, more ...string) []string {
	return append([]string{
		"agent", "--state-dir", filepath.Join(g.dir, fmt.Sprint("agent", k)),
		"--launcher", "direct", "--cgroup-prefix", g.net.id, "--cpus", "4", "--memory", "2048",
	}, more...)
}

// refused runs an agent that must end by itself, and returns what it says.
func (g *gated) refused(k int, more ...string) string {
	g.t.Helper()
	process := g.net.command(k, g.agentArgs(k, more...)...)
	var said bytes.Buffer
	process.Stdout, process.Stderr = &said, &said
	if err := process.Start(); err != nil {
		g.t.Fatal(err)
	}
	timer := time.AfterFunc(20*time.Second, func() { _ = process.Process.Kill() })
	defer timer.Stop()
	if err := process.Wait(); err == nil || process.ProcessState.ExitCode() < 0 {
		g.t.Errorf("the agent ended with %v: %s", err, said.String())
	}
	return said.String()
}

// awaitStart returns when a start of a node's agent is registered.
func (g *gated) awaitStart(api *client.Client, k int, incarnation int64) *client.Node {
	g.t.Helper()
	var node *client.Node
	until(g.t, fmt.Sprintf("start %d of node %d is HEALTHY", incarnation, k), func() bool {
		var err error
		node, err = api.Node(g.t.Context(), fmt.Sprint("node", k))
		return err == nil && node.Status == muster.Healthy && node.Incarnation == incarnation
	})
	return node
}

// get asks from a host as a stranger does.
func (g *gated) get(k int, url string) (*http.Response, error) {
	transport := g.net.transport(k)
	transport.DisableKeepAlives = true
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	ctx, cancel := context.WithTimeout(g.t.Context(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err == nil {
		_ = response.Body.Close()
	}
	return response, err
}

func commandLine(t *testing.T, process *exec.Cmd) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", process.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestJoin_OneCommand: a machine joins over TLS with one command, is itself after a restart,
// and takes calls from its server alone.
func TestJoin_OneCommand(t *testing.T) {
	g := newGated(t)
	api := g.serve(hostServer)
	token := g.token(api)
	place := token + "@" + addressOf(hostServer)
	agent := g.net.start(hostNodeA, g.log, g.agentArgs(hostNodeA, "--join", place)...)
	node := g.awaitStart(api, hostNodeA, 1)
	if node.Addr != addressOf(hostNodeA) || node.Port != 8080 {
		t.Errorf("it is reached at %s:%d", node.Addr, node.Port)
	}
	if line := commandLine(t, agent); strings.Contains(line, token[20:40]) || !strings.Contains(line, "--join") {
		t.Errorf("the list of processes shows %q", line)
	}
	// Nobody but the server is heard at its port, with or without TLS.
	for _, url := range []string{"https://" + addressOf(hostNodeA) + ":8080/identity", "http://" + addressOf(hostNodeA) + ":8080/identity"} {
		if response, err := g.get(hostNodeB, url); err == nil && response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s answers a stranger with %s", url, response.Status)
		}
	}
	if response, err := g.get(hostNodeB, "http://"+addressOf(hostServer)+":9000/healthz"); err == nil && response.StatusCode != http.StatusBadRequest {
		t.Errorf("the server answers in the clear: %s", response.Status)
	}
	if response, err := g.get(hostNodeB, "https://"+addressOf(hostServer)+":9000/healthz"); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("the server does not answer by TLS: %v", err)
	}

	if said := g.refused(hostNodeB, "--join", place); !strings.Contains(said, "has been used by node1") || strings.Contains(said, token[20:40]) {
		t.Errorf("the second to use a token is told %q", said)
	}

	_ = agent.Process.Signal(syscall.SIGTERM)
	_ = agent.Wait()
	if said := g.refused(hostNodeA, "--id", "another"); !strings.Contains(said, "this machine joined as node node1, not as another") {
		t.Errorf("by another name it is told %q", said)
	}
	g.net.start(hostNodeA, g.log, g.unnamedArgs(hostNodeA)...) // it knows its name
	if again := g.awaitStart(api, hostNodeA, 2); again.UID != node.UID {
		t.Errorf("after a restart it is %s, was %s", again.UID, node.UID)
	}
	examined, _ := g.net.command(hostNodeA, "doctor", "--state-dir", filepath.Join(g.dir, fmt.Sprint("agent", hostNodeA))).CombinedOutput()
	for _, want := range []string{
		"OK    server           https://" + addressOf(hostServer) + ":9000 answers",
		"OK    port             the agent of node node1 listens on " + addressOf(hostNodeA) + ":8080 already",
		"OK    clock            this machine's is that of the server",
	} {
		if !strings.Contains(string(examined), want) {
			t.Errorf("the doctor of a machine that joined says:\n%s\nand not: %s", examined, want)
		}
	}
	if logs, err := os.ReadFile(g.log.Name()); err != nil || bytes.Contains(logs, []byte(token[20:40])) || !bytes.Contains(logs, []byte("the node has joined")) {
		t.Errorf("the logs do not tell of the joining, or tell too much: %v", err)
	}
}

// TestJoin_SomebodyInBetween: who answers in the server's place hears nothing.
func TestJoin_SomebodyInBetween(t *testing.T) {
	g := newGated(t)
	api, other := g.serve(hostServer), g.serve(hostBetween)
	token := g.token(api)
	said := g.refused(hostNodeA, "--join", token+"@"+addressOf(hostBetween))
	if !strings.Contains(said, "somebody may be in between") || strings.Contains(said, token[20:40]) {
		t.Errorf("it is told %q", said)
	}
	refused := true
	heard, err := other.AuditLog(t.Context(), &muster.AuditFilter{Refused: &refused}, muster.PageInput{})
	if err != nil || len(heard.Edges) != 0 {
		t.Errorf("it was heard: %+v, %v", heard, err)
	}
	// A node that has joined does not follow another server to its address either.
	g.net.start(hostNodeA, g.log, g.agentArgs(hostNodeA, "--join", token+"@"+addressOf(hostServer))...)
	g.awaitStart(api, hostNodeA, 1)
	said = g.refused(hostNodeB, "--join", g.token(other)+"@"+addressOf(hostServer))
	if !strings.Contains(said, "somebody may be in between") {
		t.Errorf("by the other's token it is told %q", said)
	}
}
