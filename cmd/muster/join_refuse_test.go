package main

import (
	"bytes"
	"errors"
	"io/fs"
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

// newcomer is an agent that is joining.
type newcomer struct {
	process *exec.Cmd
	said    bytes.Buffer
	err     error // how it ended; read after it is done
}

// TestJoin_ByTwoAtOnce: of two machines that present a token at the same moment one is in, and the other is told so.
func TestJoin_ByTwoAtOnce(t *testing.T) {
	g := newGated(t)
	api := g.serve(hostServer)
	place := g.token(api) + "@" + addressOf(hostServer)
	ended := make(chan *newcomer, 2)
	both := map[*newcomer]string{}
	for k, id := range map[int]string{hostNodeA: "node1", hostNodeB: "node2"} {
		n := &newcomer{process: g.net.command(k, g.agentArgs(k, "--join", place)...)}
		n.process.Stdout, n.process.Stderr = &n.said, &n.said
		if err := n.process.Start(); err != nil {
			t.Fatal(err)
		}
		both[n] = id
		go func() {
			n.err = n.process.Wait()
			ended <- n
		}()
		t.Cleanup(func() { _ = n.process.Process.Kill() })
	}
	var loser *newcomer
	select {
	case loser = <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("both of them go on")
	}
	var winner *newcomer
	for n := range both {
		if n != loser {
			winner = n
		}
	}
	if want := "the join token t-1 has been used by " + both[winner]; loser.err == nil || !strings.Contains(loser.said.String(), want) {
		t.Errorf("%s ended with %v and says %q, want %q in it", both[loser], loser.err, loser.said.String(), want)
	}
	until(t, "the other one is HEALTHY", func() bool {
		node, err := api.Node(t.Context(), both[winner])
		return err == nil && node.Status == muster.Healthy
	})
	if _, err := api.Node(t.Context(), both[loser]); muster.CodeOf(err) != muster.NotFound {
		t.Errorf("the one that is not in: %v", err)
	}
	_ = winner.process.Process.Signal(syscall.SIGTERM)
	if <-ended; winner.err != nil {
		t.Errorf("%s ended with %v: %s", both[winner], winner.err, winner.said.String())
	}
}

// TestJoin_Refuses: each mistake is told apart, no answer repeats a token, and nobody is in.
func TestJoin_Refuses(t *testing.T) {
	g := newGated(t)
	api := g.serve(hostServer)
	const at = "@10.77.0.1"
	second, id := time.Second, func(text string) muster.TokenID { return muster.TokenID(strings.Split(text, "_")[1]) }
	short, err := api.CreateJoinToken(t.Context(), muster.CreateJoinTokenInput{TTL: &second})
	if err != nil {
		t.Fatal(err)
	}
	revoked, good := g.token(api), g.token(api)
	if _, err := api.RevokeJoinToken(t.Context(), id(revoked)); err != nil {
		t.Fatal(err)
	}
	viewer, err := api.CreateAccessKey(t.Context(), muster.CreateAccessKeyInput{Name: "v", Role: muster.Viewer})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the short token is gone", func() bool { return time.Now().After(short.JoinToken.ExpiresAt) })
	for name, c := range map[string]struct{ join, want string }{
		"expired":                {short.Text + at, "the join token " + string(id(short.Text)) + " expired at 20"},
		"revoked":                {revoked + at, "the server does not know this join token: it is another cluster's, or has been revoked; make one with muster token create"},
		"with a typo":            {good[:len(good)-1] + "!" + at, "this is a join token with a typo, or not all of one: copy all of it again"},
		"half of it":             {good[:40] + at, "this is a join token with a typo, or not all of one"},
		"an access key":          {*viewer.Text + at, "this is an access key, not a join token: make one with muster token create"},
		"nothing of the kind":    {"hello" + at, "this is not a join token: one begins with muster-join_"},
		"without a place":        {good, "it does not say which server to join: write TOKEN@HOST"},
		"with a URL for a place": {good + "@https://10.77.0.1", "no host: write TOKEN@HOST, with a name or an IP address and no https:// before it"},
	} {
		said := g.refused(hostNodeA, "--join", c.join)
		if !strings.Contains(said, c.want) || len(c.join) > 60 && strings.Contains(said, c.join[20:40]) {
			t.Errorf("%s: it says %q, want %q in it", name, said, c.want)
		}
	}
	if nodes, err := api.Nodes(t.Context(), nil, muster.PageInput{}); err != nil || len(nodes.Edges) != 0 {
		t.Errorf("somebody is in: %v, %v", nodes, err)
	}
	if _, err := os.Stat(filepath.Join(g.dir, "agent1", "joined.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it believes that it has joined: %v", err)
	}
	g.keysInTheOpen(t, api, good+at)
}

// keysInTheOpen has a node's keys become readable for others: its agent does not begin.
func (g *gated) keysInTheOpen(t *testing.T, api *client.Client, join string) {
	t.Helper()
	agent := g.net.start(hostNodeA, g.log, g.agentArgs(hostNodeA, "--join", join)...)
	g.awaitStart(api, hostNodeA, 1)
	_ = agent.Process.Signal(syscall.SIGTERM)
	_ = agent.Wait()
	for _, name := range []string{"access.key", "node.key"} {
		path := filepath.Join(g.dir, "agent1", name)
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if said := g.refused(hostNodeA); !strings.Contains(said, path+" can be read by others than its owner (mode 0644): run chmod 600 "+path+", and replace the key") {
			t.Errorf("%s: it says %q", name, said)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A node that has joined does not take another server for its own.
	other := g.serve(hostBetween)
	if said := g.refused(hostNodeA, "--server", "https://"+addressOf(hostBetween)+":9000"); !strings.Contains(said, "somebody may be in between") {
		t.Errorf("at another server it says %q", said)
	}
	refused := true
	if heard, err := other.AuditLog(t.Context(), &muster.AuditFilter{Refused: &refused}, muster.PageInput{}); err != nil || len(heard.Edges) != 0 {
		t.Errorf("that was heard: %+v, %v", heard, err)
	}
}
