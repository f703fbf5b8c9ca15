package server_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/server"
)

// execute is a fake of what an agent does with a command.
type execute func(context.Context, muster.ExecRequest, client.ExecStreams) muster.ExecExited

// withAgent registers a node whose agent runs commands by run, and launches an instance
// that it says runs.
func withAgent(t *testing.T, c *client.Client, run execute) muster.InstanceID {
	t.Helper()
	register(t, c, "127.0.0.1", 1)
	n, err := c.Node(t.Context(), "n1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := c.AgentRequests(ctx, n.UID, 7, func(request muster.AgentRequest) {
			go func() {
				_, _ = c.AnswerAgentRequest(ctx, muster.AgentAnswerInput{UID: n.UID, Incarnation: 7, ID: request.ID})
				_ = c.ServeExec(ctx, request.Exec.Session, func(ctx context.Context, streams client.ExecStreams) muster.ExecExited {
					return run(ctx, *request.Exec, streams)
				})
			}()
		})
		if ctx.Err() == nil && muster.CodeOf(err) != muster.Unavailable {
			t.Errorf("the agent's connection ended: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	i, err := c.LaunchInstance(t.Context(), muster.LaunchInstanceInput{Type: muster.Nano, Image: "minimal"})
	if err != nil {
		t.Fatal(err)
	}
	info, err := c.ServerInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.ReportInstances(t.Context(), muster.ReportInstancesInput{
		UID: n.UID, Incarnation: 7, Sequence: 1, Epoch: info.Epoch,
		Instances: []muster.InstanceReportInput{{Machine: i.Machine, Epoch: info.Epoch, ID: i.ID, Generation: 1, Status: muster.Running}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return i.ID
}

func TestExec_PassesStreamsAndTheStatusOn(t *testing.T) {
	s := open(t, server.Options{})
	defer run(t, s)()
	c := connect(t, s)
	const size = 3 << 20
	id := withAgent(t, c, func(_ context.Context, request muster.ExecRequest, streams client.ExecStreams) muster.ExecExited {
		said, _ := io.ReadAll(streams.Stdin)
		_, _ = io.WriteString(streams.Stderr, strings.Join(request.Command, "|"))
		_, _ = streams.Stdout.Write(bytes.ToUpper(said))
		_, _ = streams.Stdout.Write(bytes.Repeat([]byte("x"), size))
		return muster.ExecExited{Code: 7}
	})
	var out, failed bytes.Buffer
	eventually(t, "the agent has come", func() bool {
		out.Reset()
		failed.Reset()
		exited, err := c.Exec(t.Context(), id, muster.ExecRequest{Command: []string{"a", "b c"}}, client.ExecStreams{
			Stdin: strings.NewReader("hello\n"), Stdout: &out, Stderr: &failed,
		})
		if err == nil && exited.Code != 7 {
			t.Errorf("it ended with %+v", exited)
		}
		return err == nil
	})
	if got := out.String(); !strings.HasPrefix(got, "HELLO\n") || len(got) != 6+size || failed.String() != "a|b c" {
		t.Errorf("%d bytes came, and %q", len(got), failed.String())
	}
	log, err := c.AuditLog(t.Context(), nil, muster.PageInput{})
	if err != nil || len(log.Edges) == 0 || log.Edges[0].Node.Action != "exec" || log.Edges[0].Node.Target != string(id) || log.Edges[0].Node.Reason != "a b c" {
		t.Errorf("the audit has %+v, %v", log, err)
	}
}

func TestExec_EndsWithItsCaller(t *testing.T) {
	s := open(t, server.Options{})
	defer run(t, s)()
	c := connect(t, s)
	began, ended := make(chan struct{}, 1), make(chan struct{})
	id := withAgent(t, c, func(ctx context.Context, _ muster.ExecRequest, _ client.ExecStreams) muster.ExecExited {
		began <- struct{}{}
		<-ctx.Done()
		close(ended)
		return muster.ExecExited{Code: 137}
	})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		for {
			_, err := c.Exec(ctx, id, muster.ExecRequest{Command: []string{"sleep"}}, client.ExecStreams{})
			if muster.CodeOf(err) != muster.Unavailable {
				failed <- err
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	<-began
	cancel()
	if err := <-failed; err == nil || ctx.Err() == nil {
		t.Errorf("the call ended with %v", err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the command runs on")
	}
}

func TestExec_Refuses(t *testing.T) {
	s := open(t, server.Options{})
	defer run(t, s)()
	c := connect(t, s)
	for name, x := range map[string]struct {
		id      muster.InstanceID
		request muster.ExecRequest
		code    muster.Code
	}{
		"no instance": {"i-99", muster.ExecRequest{Command: []string{"x"}}, muster.NotFound},
		"no command":  {"i-1", muster.ExecRequest{}, muster.Invalid},
		"a dir":       {"i-1", muster.ExecRequest{Command: []string{"x"}, Dir: "x"}, muster.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Exec(t.Context(), x.id, x.request, client.ExecStreams{})
			if muster.CodeOf(err) != x.code {
				t.Errorf("got %v, want %s", err, x.code)
			}
		})
	}
}
