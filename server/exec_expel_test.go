package server_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

func (w *town) client(key string) *client.Client {
	w.t.Helper()
	c, err := client.New(client.Options{URL: w.URL(), Key: key})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// commanded is a command in an instance, of which both sides are connected.
type commanded struct {
	caller, node string          // the texts of their keys
	left         chan error      // what its caller got
	over         <-chan struct{} // closed when its agent's connection has ended
}

// command has a caller run a command on a new node, until its connection ends.
func (w *town) command(caller string) *commanded {
	w.t.Helper()
	name := fmt.Sprintf("a-%d", w.next())
	key, uid := w.join(name)
	id := muster.InstanceID(w.launch(name))
	agent := w.client(key)
	i, err := w.client(w.keys[admin]).Instance(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	epoch := w.must(admin, `{ serverInfo { epoch } }`, "serverInfo", "epoch")
	if _, err := agent.ReportInstances(w.t.Context(), muster.ReportInstancesInput{
		UID: muster.NodeUID(uid), Incarnation: 1, Sequence: 1, Epoch: epoch,
		Instances: []muster.InstanceReportInput{{Machine: i.Machine, Epoch: epoch, ID: id, Generation: 1, Status: muster.Running}},
	}); err != nil {
		w.t.Fatal(err)
	}
	began, over := make(chan struct{}), make(chan struct{})
	asked := make(chan muster.AgentRequest, 1)
	requests, cancel := context.WithCancel(w.t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = agent.AgentRequests(requests, muster.NodeUID(uid), 1, func(r muster.AgentRequest) { asked <- r })
	}()
	go func() {
		defer close(over)
		select {
		case r := <-asked:
			_, _ = agent.AnswerAgentRequest(requests, muster.AgentAnswerInput{UID: muster.NodeUID(uid), Incarnation: 1, ID: r.ID})
			_ = agent.ServeExec(requests, r.Exec.Session, func(ctx context.Context, _ client.ExecStreams) muster.ExecExited {
				close(began)
				<-ctx.Done()
				return muster.ExecExited{Code: 137}
			})
		case <-requests.Done():
		}
	}()
	w.t.Cleanup(func() { cancel(); <-stopped; <-over })
	c := &commanded{caller: caller, node: key, left: make(chan error, 1), over: over}
	calls := w.client(caller)
	go func() {
		for {
			_, err := calls.Exec(requests, id, muster.ExecRequest{Command: []string{"sleep"}}, client.ExecStreams{})
			select {
			case <-began:
			default:
				if muster.CodeOf(err) == muster.Unavailable && requests.Err() == nil {
					continue // its agent has not come yet
				}
			}
			c.left <- err
			return
		}
	}()
	select {
	case <-began:
	case err := <-c.left:
		w.t.Fatalf("the command did not begin: %v", err)
	}
	return c
}

// A command ends with the key of either side of it, and its caller is told so.
func TestExec_EndsWithAKey(t *testing.T) {
	w := newTown(t)
	revoke := func(key string) {
		w.must(admin, fmt.Sprintf(`mutation { revokeAccessKey(input: {id: %q}) { revision } }`, idOf(key)))
	}
	for name, test := range map[string]struct {
		lasts time.Duration // the caller's key; 0: until it is ended
		end   func(*commanded)
		want  muster.Code
	}{
		"its caller's is revoked": {0, func(c *commanded) { revoke(c.caller) }, muster.Forbidden},
		"its caller's has a new secret": {0, func(c *commanded) {
			w.must(admin, fmt.Sprintf(`mutation { rotateAccessKey(input: {id: %q}) { revision } }`, idOf(c.caller)))
		}, muster.Forbidden},
		"its caller's expires":  {2 * time.Second, func(*commanded) {}, muster.Forbidden},
		"its node's is revoked": {0, func(c *commanded) { revoke(c.node) }, muster.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			defer func(before *testing.T) { w.t = before }(w.t)
			w.t = t
			more := ""
			if test.lasts > 0 {
				more = fmt.Sprintf(`, expiresAt: %q`, time.Now().Add(test.lasts).Format(time.RFC3339Nano))
			}
			c := w.command(w.key("OPERATOR", more))
			test.end(c)
			late := time.After(10 * time.Second)
			select {
			case err := <-c.left:
				if muster.CodeOf(err) != test.want {
					t.Errorf("its caller got %v, want %s", err, test.want)
				}
			case <-late:
				t.Error("its caller is still connected")
			}
			select {
			case <-c.over:
			case <-late:
				t.Error("its agent is still connected")
			}
		})
	}
}
