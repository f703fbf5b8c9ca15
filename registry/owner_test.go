package registry_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
)

// agent is a caller of what agents call.
type agent struct {
	ctx context.Context
	uid muster.NodeUID // of the node that it speaks for
	id  muster.NodeID
}

// agentCalls is everything that a NODE key may call, a line each.
func agentCalls() map[string]func(w *world, a agent) error {
	return map[string]func(w *world, a agent) error{
		"registerNode": func(w *world, a agent) error {
			in := nodeInput(string(a.id), 4, 4096)
			in.UID, in.Incarnation = &a.uid, 1
			_, err := w.RegisterNode(a.ctx, in)
			return err
		},
		"heartbeat": func(w *world, a agent) error {
			_, err := w.Heartbeat(a.ctx, muster.HeartbeatInput{UID: a.uid, Incarnation: 1})
			return err
		},
		"reportInstances": func(w *world, a agent) error {
			_, _, err := w.ReportInstances(a.ctx, muster.ReportInstancesInput{UID: a.uid, Incarnation: 1, Sequence: 1, Epoch: w.ServerInfo().Epoch})
			return err
		},
		"assignments": func(w *world, a agent) error {
			_, err := w.Assignments(a.ctx, a.uid, 1)
			return err
		},
		"peers": func(w *world, a agent) error {
			_, err := w.Peers(a.ctx, a.uid, 1)
			return err
		},
		"agentRequests": func(w *world, a agent) error {
			ctx, cancel := context.WithCancel(a.ctx)
			cancel()
			if err := w.AgentRequests(ctx, a.uid, 1, nil); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
		"answerAgentRequest": func(w *world, a agent) error {
			_, err := w.AnswerAgentRequest(a.ctx, muster.AgentAnswerInput{UID: a.uid, Incarnation: 1, ID: 1})
			return err
		},
	}
}

func TestNodeKey_SpeaksForItsOwnNodeAlone(t *testing.T) {
	for call, do := range agentCalls() {
		t.Run(call, func(t *testing.T) {
			w := open(t, setup{})
			_, text := w.token(t, muster.CreateJoinTokenInput{Uses: new(2)})
			mine, theirs := w.joined(t, text, newMachine(t), "mine"), w.joined(t, text, newMachine(t), "theirs")
			for j, id := range map[*muster.Joined]string{mine: "mine", theirs: "theirs"} {
				if _, err := w.registers(t, j, nodeInput(id, 4, 4096)); err != nil {
					t.Fatal(err)
				}
			}
			before := *w.Node("theirs")
			_, wide := w.made(t, muster.CreateAccessKeyInput{Name: "wide", Role: muster.NodeAgent, Scope: &muster.KeyScope{Nodes: []string{"mi*"}}})
			_, everywhere := w.made(t, muster.CreateAccessKeyInput{Name: "everywhere", Role: muster.NodeAgent, Scope: &muster.KeyScope{Nodes: []string{"*"}}})
			for name, c := range map[string]struct {
				text string
				uid  muster.NodeUID
				id   muster.NodeID
				want muster.Code
			}{
				"its own":                              {mine.Key, mine.NodeUID, "mine", ""},
				"another's":                            {mine.Key, theirs.NodeUID, "theirs", muster.Forbidden},
				"another's by its own name":            {mine.Key, theirs.NodeUID, "mine", muster.Forbidden},
				"a scope's":                            {wide, mine.NodeUID, "mine", ""},
				"out of a scope":                       {wide, theirs.NodeUID, "theirs", muster.Forbidden},
				"out of a scope, by a name that is in": {wide, theirs.NodeUID, "mimic", muster.Forbidden},
				"of a scope that is everything":        {everywhere, theirs.NodeUID, "theirs", ""},
			} {
				err := do(w, agent{w.holder(t, c.text), c.uid, c.id})
				if muster.CodeOf(err) != c.want {
					t.Errorf("%s: %v, want %q", name, err, c.want)
				}
				if c.want != "" && err != nil && (!strings.Contains(err.Error(), "is another node's") || strings.Contains(err.Error(), before.Addr)) {
					t.Errorf("%s is told: %v", name, err)
				}
			}
			if after := w.Node("theirs"); after == nil || after.ID != "theirs" || after.Addr != before.Addr {
				t.Errorf("the other node is %+v", after)
			}
			if err := do(w, agent{ctx, theirs.NodeUID, "theirs"}); err != nil {
				t.Errorf("an ADMIN: %v", err)
			}
		})
	}
}

func TestNodeKey_CannotBecomeAnotherNodeByRegistering(t *testing.T) {
	w := open(t, setup{})
	_, text := w.token(t, muster.CreateJoinTokenInput{})
	j := w.joined(t, text, newMachine(t), "mine")
	in := nodeInput("other", 4, 4096)
	_, err := w.registers(t, j, in)
	wantCode(t, err, muster.Forbidden)
	in = nodeInput("mine", 4, 4096)
	out, err := w.registers(t, j, in) // an agent that lost its uid keeps the one of its key
	if err != nil || out.Node.UID != j.NodeUID {
		t.Fatalf("%+v, %v", out, err)
	}
	// A copy of the state directory that runs elsewhere is found out with a key, too.
	w.agents.identity = func(string, int) (muster.NodeUID, int64, error) { return j.NodeUID, 1, nil }
	in.Addr, in.Incarnation = "192.0.2.66", 2
	_, err = w.registers(t, j, in)
	wantCode(t, err, muster.DuplicateIdentity)
}

// What a node reports of another's instances is counted and has no effect.
func TestNodeKey_ReportsOfOthersInstancesAreIgnored(t *testing.T) {
	w := open(t, setup{})
	theirs := w.join(t, "theirs", 4, 4096)
	i := w.launch(t, launch(muster.Nano))
	_, text := w.token(t, muster.CreateJoinTokenInput{})
	j := w.joined(t, text, newMachine(t), "mine")
	in := nodeInput("mine", 4, 4096)
	in.Epoch = w.ServerInfo().Epoch
	in.Instances = []muster.InstanceReportInput{{Machine: i.Machine, Epoch: in.Epoch, ID: i.ID, Generation: 1, Status: muster.Failed, Reason: "says a stranger"}}
	if _, err := w.registers(t, j, in); err != nil {
		t.Fatal(err)
	}
	if got := wantStatus(t, w, i.ID, muster.Provisioning); got.NodeUID != theirs.UID || w.Stats().Ignored != 1 {
		t.Errorf("%+v, %d ignored", got, w.Stats().Ignored)
	}
}
