package registry_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

// overdue is a context whose deadline passes when it is closed.
type overdue chan struct{}

func (overdue) Deadline() (time.Time, bool) { return time.Time{}, false }
func (o overdue) Done() <-chan struct{}     { return o }
func (overdue) Value(key any) any           { return ctx.Value(key) }

func (o overdue) Err() error {
	select {
	case <-o:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestExec_AnAgentThatHangs(t *testing.T) {
	w, n, i, _ := logged(t, registry.Options{})
	there, leave := context.WithCancel(ctx)
	gone := make(chan struct{})
	hangs := make(chan overdue, 1)
	go func() {
		defer close(gone)
		_ = w.AgentRequests(there, n.UID, n.Incarnation, func(*muster.AgentRequest) error {
			close(<-hangs) // it has taken the request, and the caller's time is up
			return nil
		})
	}()
	defer func() { leave(); <-gone }()
	eventually(t, "the agent is asked", func() bool {
		caller := make(overdue)
		hangs <- caller
		_, err := w.Exec(caller, i.ID, muster.ExecRequest{Session: "s", Command: []string{"x"}})
		wantCode(t, err, muster.Unavailable)
		select {
		case <-caller:
			wantText(t, err, "does not answer: see muster why i-1")
			return true
		default: // the agent was not there yet
			wantText(t, err, "is not connected: see muster why i-1")
			<-hangs
			return false
		}
	})
}

func TestExec_WhereNothingRuns(t *testing.T) {
	for _, status := range []muster.InstanceStatus{muster.Stopped, muster.Failed} {
		w, n, i, _ := logged(t, registry.Options{})
		w.report(t, n, 2, map[muster.InstanceID]muster.InstanceStatus{i.ID: status})
		_, err := w.Exec(ctx, i.ID, muster.ExecRequest{Session: "s", Command: []string{"x"}})
		wantCode(t, err, muster.Conflict)
		wantText(t, err, "is "+string(status)+": start it first, with muster instance start i-1")
	}
}

func wantText(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want %q in it", err, text)
	}
}
