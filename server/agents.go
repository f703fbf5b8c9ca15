package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

const (
	// agentTimeout bounds a call to an agent: it is best effort, and the next
	// beat tells the agent the same.
	agentTimeout = 2 * time.Second
	// maxAgentAnswer bounds what is read of an agent's answer, in bytes.
	maxAgentAnswer = 4096
)

// agents reaches the agents over HTTP; the registry bounds how many at once.
type agents struct {
	client       *http.Client // of agents without TLS
	authority    *authority   // nil: none has TLS
	sent, failed atomic.Int64
}

func newAgents(a *authority) *agents {
	return &agents{authority: a, client: agentClient(&http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second})}
}

func agentClient(transport *http.Transport) *http.Client {
	return &http.Client{
		Timeout: agentTimeout,
		// An agent has no reason to send us elsewhere, and no proxy knows it.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     transport,
	}
}

func (a *agents) close() { a.client.CloseIdleConnections() }

// target is the agent of a node.
type target struct {
	uid    muster.NodeUID
	addr   string
	port   int
	secure bool
}

func (t target) address() string { return net.JoinHostPort(t.addr, strconv.Itoa(t.port)) }

// reach is how to call an agent. By TLS each call has a connection of its own: one that
// is kept would be to whoever was at the address when it was made.
func (a *agents) reach(t target) (client *http.Client, scheme string, err error) {
	switch {
	case !t.secure:
		return a.client, "http", nil
	case a.authority == nil:
		return nil, "", fmt.Errorf("call the agent at %s: it takes calls by TLS, and this server has none", t.address())
	}
	return agentClient(&http.Transport{DisableKeepAlives: true, TLSClientConfig: a.authority.party().CallNode(t.uid)}), "https", nil
}

// Nudge tells an agent that its node's desired revision has moved.
func (a *agents) Nudge(ctx context.Context, n registry.Nudge) error {
	body, err := json.Marshal(struct {
		Instance        muster.InstanceID `json:"instance"`
		DesiredRevision int64             `json:"desiredRevision"`
		Incarnation     int64             `json:"incarnation"`
	}{n.Instance, n.DesiredRevision, n.Incarnation})
	if err != nil {
		return fmt.Errorf("encode the nudge: %w", err)
	}
	path := "/instances/" + url.PathEscape(string(n.Instance)) + "/provision"
	if _, err := a.call(ctx, http.MethodPost, target{n.UID, n.Addr, n.Port, n.Secure}, path, body); err != nil {
		a.failed.Add(1)
		return err
	}
	a.sent.Add(1)
	return nil
}

// Identify asks who answers at the address of a node's agent.
func (a *agents) Identify(ctx context.Context, n *muster.Node) (muster.NodeUID, int64, error) {
	at := target{n.UID, n.Addr, n.Port, n.Secure}
	answer, err := a.call(ctx, http.MethodGet, at, "/identity", nil)
	if err != nil {
		return "", 0, err
	}
	var who struct {
		UID         muster.NodeUID `json:"uid"`
		Incarnation int64          `json:"incarnation"`
	}
	if err := json.Unmarshal(answer, &who); err != nil {
		return "", 0, fmt.Errorf("the agent at %s did not say who it is: %w", at.address(), err)
	}
	return who.UID, who.Incarnation, nil
}

// call makes one call and returns the body of an answer that is a success.
func (a *agents) call(ctx context.Context, method string, at target, path string, body []byte) ([]byte, error) {
	address := at.address()
	client, scheme, err := a.reach(at)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, scheme+"://"+address+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("call the agent at %s: %w", address, err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("call the agent at %s: %w", address, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAgentAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer of the agent at %s: %w", address, err)
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return nil, fmt.Errorf("the agent at %s answered %s", address, response.Status)
	}
	return answer, nil
}
