package main

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry/auth"
)

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
	// Its own node is asked whether it is still there, and is.
	if err := beyond()["a registration"](t.Context(), thief, subjectOf(victim)); muster.CodeOf(err) != muster.DuplicateIdentity {
		t.Errorf("a registration in the place of its own node: %v", err)
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
