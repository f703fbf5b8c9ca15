package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
)

// TestAgent_FirstAnswerLost kills an agent whose first registration was taken, and that was not told so. The next one is the
// same node.
func TestAgent_FirstAnswerLost(t *testing.T) {
	c := newCloud(t)
	taken := make(chan string, 1)
	proxy := c.losing(taken)
	api := c.client()
	key, err := api.CreateAccessKey(t.Context(), muster.CreateAccessKeyInput{Name: "second", Role: muster.NodeAgent, Scope: &muster.KeyScope{Nodes: []string{"second"}}})
	if err != nil {
		t.Fatal(err)
	}
	c.env = append(c.env, "MUSTER_KEY="+*key.Text) // it can only join the server that it finds
	args := []string{"agent", "--id", "second", "--listen", "127.0.0.1:8090", "--state-dir", filepath.Join(c.dir, "second"), "--cgroup-prefix", c.netns}
	agent := c.begin(append(args, "--server", proxy)...)
	var uid string
	select {
	case uid = <-taken:
	case <-time.After(time.Minute):
		killHard(t, agent.Process.Pid)
		t.Fatal("the agent did not register within a minute")
	}
	killHard(t, agent.Process.Pid)
	_ = agent.Wait() // killed
	agent = c.begin(args...)
	defer func() {
		killHard(t, agent.Process.Pid)
		_ = agent.Wait() // killed
	}()
	c.until("the next agent has registered", func() bool {
		n, err := api.Node(t.Context(), "second")
		return err == nil && n.Incarnation == 2
	})
	if n, err := api.Node(t.Context(), "second"); err != nil || string(n.UID) != uid || n.Status != muster.Healthy {
		t.Errorf("it is %+v, %v, want the uid %s", n, err, uid)
	}
}

// losing starts a proxy of the server inside of the cloud's network, and returns its URL. It sends the uid of a node that was
// registered over it, and never the answer itself.
func (c *cloud) losing(taken chan<- string) string {
	c.t.Helper()
	back, err := setns("/run/netns/" + c.netns)
	if err != nil {
		c.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	back()
	if err != nil {
		c.t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:9000"})
	proxy.Transport = transportIn("/run/netns/" + c.netns)
	proxy.ModifyResponse = func(r *http.Response) error {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		var answer struct {
			Data struct {
				RegisterNode struct{ Node struct{ UID string } }
			}
		}
		if json.Unmarshal(body, &answer) == nil && answer.Data.RegisterNode.Node.UID != "" {
			taken <- answer.Data.RegisterNode.Node.UID
			<-r.Request.Context().Done()
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		return nil
	}
	server := &http.Server{Handler: proxy}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // closed
	}()
	c.t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return "http://" + listener.Addr().String()
}
