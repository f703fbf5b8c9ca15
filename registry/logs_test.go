package registry_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

// logAgent answers requests from what it has for each machine.
type logAgent struct {
	mu    sync.Mutex
	logs  map[string]string
	from  map[string]int64 // what is no longer kept
	ended map[string]bool
	asked []muster.LogRequest
}

func (a *logAgent) write(machine, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.logs[machine] += text
}

// attend is the agent at the desk, until the returned function is called.
func (a *logAgent) attend(t *testing.T, w *world, n *muster.Node) (leave func() error) {
	t.Helper()
	there, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- w.AgentRequests(there, n.UID, n.Incarnation, func(r *muster.AgentRequest) error {
			answer := a.answer(r.Log)
			answer.UID, answer.Incarnation, answer.ID = n.UID, n.Incarnation, r.ID
			if _, err := w.AnswerAgentRequest(ctx, answer); err != nil {
				t.Error(err)
			}
			return nil
		})
	}()
	leave = sync.OnceValue(func() error { stop(); return <-done })
	t.Cleanup(func() { _ = leave() })
	return leave
}

// come is attend, and waits until the agent is there.
func (a *logAgent) come(t *testing.T, w *world, n *muster.Node) (leave func() error) {
	t.Helper()
	leave = a.attend(t, w, n)
	eventually(t, "the agent is there", func() bool { return <-w.read(muster.InstanceLogsInput{ID: "i-1"}).done == nil })
	return leave
}

func (a *logAgent) answer(r *muster.LogRequest) muster.AgentAnswerInput {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, *r)
	text, ok := a.logs[r.Machine]
	if !ok {
		code := muster.NotFound
		return muster.AgentAnswerInput{Code: &code, Message: "there is no machine"}
	}
	from := max(r.Offset, a.from[r.Machine], 0)
	data := text[from:min(len(text), int(from)+r.Limit)]
	return muster.AgentAnswerInput{Offset: from, Data: []byte(data), End: int64(len(text)), Ended: a.ended[r.Machine] && data == ""}
}

// reading is a log being read.
type reading struct {
	mu     sync.Mutex
	pieces []muster.LogPiece
	done   chan error
	stop   context.CancelFunc
}

func (w *world) read(in muster.InstanceLogsInput) *reading {
	there, stop := context.WithCancel(ctx)
	r := &reading{done: make(chan error, 1), stop: stop}
	go func() {
		r.done <- w.InstanceLogs(there, in, func(p *muster.LogPiece) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.pieces = append(r.pieces, *p)
			return nil
		})
	}()
	return r
}

func (r *reading) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, p := range r.pieces {
		b.WriteString(p.Text)
	}
	return b.String()
}

func (r *reading) last() muster.LogPiece {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pieces[len(r.pieces)-1]
}

// logged is a node with an agent and a running instance.
func logged(t *testing.T, opts registry.Options) (*world, *muster.Node, *muster.Instance, *logAgent) {
	t.Helper()
	w := open(t, setup{opts: opts})
	n := w.join(t, "n1", 4, 4096)
	i := w.launch(t, launch(muster.Nano))
	w.report(t, n, 1, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Running})
	return w, n, w.Instance(i.ID), &logAgent{logs: map[string]string{}, from: map[string]int64{}, ended: map[string]bool{}}
}

func TestInstanceLogs_ReadsWhatThereIs(t *testing.T) {
	long := "x" + strings.Repeat("é", 50_000) // the limit of an answer falls into a character
	after := "1-7"
	for name, c := range map[string]struct {
		log, want string
		after     *string
		from      int64 // kept
		skipped   int64
	}{
		"nothing":                {"", "", nil, 0, 0},
		"characters of two":      {long, long, nil, 0, 0},
		"what is no text":        {"a\xffb\x00c\n", "a\uFFFDb\x00c\n", nil, 0, 0},
		"half a character":       {"a\xc3", "a\uFFFD", nil, 0, 0},
		"after a place":          {"0123456789", "789", &after, 0, 0},
		"after a place too old":  {"0123456789", "9", &after, 9, 2},
		"the end, its start not": {"0123456789", "89", nil, 8, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w, n, i, agent := logged(t, registry.Options{})
			agent.write(i.Machine, c.log)
			agent.from[i.Machine] = c.from
			agent.come(t, w, n)
			r := w.read(muster.InstanceLogsInput{ID: i.ID, After: c.after})
			if err := <-r.done; err != nil {
				t.Fatal(err)
			}
			if got := r.text(); got != c.want {
				t.Errorf("read %.60q, want %.60q", got, c.want)
			}
			if last := r.last(); !last.End || last.Place != (muster.LogPlace{Generation: 1, Offset: int64(len(c.log))}).String() {
				t.Errorf("the last piece is %+v", last)
			}
			if r.pieces[0].Skipped != c.skipped {
				t.Errorf("%d bytes were skipped, want %d", r.pieces[0].Skipped, c.skipped)
			}
		})
	}
}

func TestInstanceLogs_FollowsOverARestartToTheEnd(t *testing.T) {
	w, n, i, agent := logged(t, registry.Options{})
	agent.write(i.Machine, "one\n")
	leave := agent.come(t, w, n)
	r := w.read(muster.InstanceLogsInput{ID: i.ID, Follow: true})
	eventually(t, "it is read", func() bool { return r.text() == "one\n" })
	agent.write(i.Machine, "two\n")
	eventually(t, "it is followed", func() bool { return r.text() == "one\ntwo\n" })

	again, _, err := w.RestartInstance(ctx, i.ID)
	if err != nil {
		t.Fatal(err)
	}
	agent.write(i.Machine, "last words\n")
	eventually(t, "the old start is read to its end", func() bool { return r.text() == "one\ntwo\nlast words\n" })
	agent.mu.Lock()
	agent.ended[i.Machine] = true
	agent.mu.Unlock()
	agent.write(again.Machine, "three\n")
	w.report(t, n, 2, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Running})
	eventually(t, "the new start is followed", func() bool { return strings.HasSuffix(r.text(), "three\n") })
	if last := r.last(); last.Generation != 2 || last.Offset != 0 {
		t.Errorf("its piece is %+v", last)
	}

	if _, _, err := w.TerminateInstance(ctx, i.ID); err != nil {
		t.Fatal(err)
	}
	agent.mu.Lock()
	delete(agent.logs, again.Machine)
	agent.mu.Unlock()
	w.report(t, n, 3, nil)
	if err := <-r.done; err != nil || !r.last().End {
		t.Errorf("it ended with %v and %+v", err, r.last())
	}
	wantCode(t, w.InstanceLogs(ctx, muster.InstanceLogsInput{ID: i.ID}, nil), muster.NotFound)
	if err := leave(); !errors.Is(err, context.Canceled) {
		t.Errorf("the agent's connection ended with %v", err)
	}
}

func TestInstanceLogs_Refuses(t *testing.T) {
	w, n, i, agent := logged(t, registry.Options{LogReadersPerNode: 1})
	no, bad, later := -1, "x", "2-0"
	for name, c := range map[string]struct {
		in   muster.InstanceLogsInput
		code muster.Code
	}{
		"an instance that is not":  {muster.InstanceLogsInput{ID: "i-99"}, muster.NotFound},
		"a tail below nothing":     {muster.InstanceLogsInput{ID: i.ID, Tail: &no}, muster.Invalid},
		"a place that is none":     {muster.InstanceLogsInput{ID: i.ID, After: &bad}, muster.Invalid},
		"a place that is to come":  {muster.InstanceLogsInput{ID: i.ID, After: &later}, muster.Invalid},
		"an agent that is away":    {muster.InstanceLogsInput{ID: i.ID}, muster.Unavailable},
		"the same, to be followed": {muster.InstanceLogsInput{ID: i.ID, Follow: true}, muster.Unavailable},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, <-w.read(c.in).done, c.code) })
	}
	agent.write(i.Machine, "one\n")
	leave := agent.come(t, w, n)
	first := w.read(muster.InstanceLogsInput{ID: i.ID, Follow: true})
	eventually(t, "one reads", func() bool { return first.text() != "" })
	wantCode(t, <-w.read(muster.InstanceLogsInput{ID: i.ID}).done, muster.Limit)
	_ = leave()
	wantCode(t, <-first.done, muster.Unavailable)
	wantCode(t, <-w.read(muster.InstanceLogsInput{ID: i.ID}).done, muster.Unavailable) // the place is free again
}

func TestAgentRequests_OneAgentANode(t *testing.T) {
	w, n, _, agent := logged(t, registry.Options{})
	wantCode(t, w.AgentRequests(ctx, "n-0", 1, nil), muster.UnknownNode)
	wantCode(t, w.AgentRequests(ctx, n.UID, n.Incarnation-1, nil), muster.Superseded)
	wantCode(t, w.AgentRequests(ctx, n.UID, n.Incarnation+1, nil), muster.UnknownNode)
	older := make(chan error, 1)
	go func() { older <- w.AgentRequests(ctx, n.UID, n.Incarnation, nil) }()
	// Whichever comes second takes the other's place: send newer ones until the first is told.
	eventually(t, "the older one is told", func() bool {
		leave := agent.attend(t, w, n)
		defer leave()
		select {
		case err := <-older:
			wantCode(t, err, muster.Conflict)
			return true
		default:
			return false
		}
	})
	if wanted, err := w.AnswerAgentRequest(ctx, muster.AgentAnswerInput{UID: n.UID, Incarnation: n.Incarnation, ID: 77}); wanted || err != nil {
		t.Errorf("an answer that nobody asked for: %v, %v", wanted, err)
	}
	_, err := w.AnswerAgentRequest(ctx, muster.AgentAnswerInput{UID: n.UID, Data: make([]byte, muster.MaxLogData+1), End: 1 << 20})
	wantCode(t, err, muster.Invalid)
}
