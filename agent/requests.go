package agent

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/client"
)

// Requests is what a Registry may have beside: the agent asks it what it wants to know
// of the node, over a connection that stays, and answers. *client.Client has it.
type Requests interface {
	// AgentRequests calls each with what is asked for until the connection is lost.
	AgentRequests(ctx context.Context, uid muster.NodeUID, incarnation int64, each func(muster.AgentRequest)) error
	AnswerAgentRequest(ctx context.Context, input muster.AgentAnswerInput) (wanted bool, err error)
}

// Sessions is what a Registry may have beside: it connects the streams of commands.
type Sessions interface {
	// ServeExec connects to a session, has run run its command, and returns once that is over.
	ServeExec(ctx context.Context, session string, run func(context.Context, client.ExecStreams) muster.ExecExited) error
}

const (
	// maxRequests is how many requests are worked on at a time; more wait.
	maxRequests = 64
	// logWait is how long a request waits for something to be written; the registry
	// asks again.
	logWait = 10 * time.Second
	// A log that is waited for is looked at this often: soon at first, then less often.
	firstLook, longestLook = 50 * time.Millisecond, 200 * time.Millisecond
)

// attend asks the registry what it asks for, and answers, whenever the node has
// registered and each time that the connection was lost. With a driver that could
// answer nothing it does not.
func (a *Agent) attend(ctx context.Context) error {
	registry, ok := a.o.Registry.(Requests)
	logs, able := a.o.Driver.(driver.Logs)
	if !ok || !able {
		return nil
	}
	return a.whenever(ctx, a.attendDue, "no connection for the registry's requests", func(ctx context.Context) error {
		return a.attendOnce(ctx, registry, logs)
	})
}

// attendOnce is one connection. The loss of one that lasted is no failure: the next
// try is at once.
func (a *Agent) attendOnce(ctx context.Context, registry Requests, logs driver.Logs) error {
	is, _ := a.identity()
	if is.UID == "" || !a.isRegistered() {
		return nil // the registration will make it due
	}
	began := time.Now()
	var work errgroup.Group
	work.SetLimit(maxRequests)
	err := registry.AgentRequests(ctx, is.UID, is.Incarnation, func(request muster.AgentRequest) {
		work.Go(func() error {
			answer := a.answerTo(ctx, logs, request)
			answer.UID, answer.Incarnation, answer.ID = is.UID, is.Incarnation, request.ID
			if _, err := registry.AnswerAgentRequest(ctx, answer); err != nil && ctx.Err() == nil {
				a.o.Logger.Debug("an answer got lost; the registry asks again", "node", a.o.ID, "err", err)
			}
			return nil
		})
	})
	_ = work.Wait() // they return no errors
	if ctx.Err() == nil && muster.CodeOf(err) == muster.Unavailable && time.Since(began) > a.interval() {
		a.attendDue.raise()
		return nil
	}
	if muster.CodeOf(err) == muster.Forbidden {
		return a.dismissed(ctx, err)
	}
	return err
}

// dismissed is why the registry ended a connection for good. When that is since the key is
// no longer good, a beat is told so with what to do, which fits into no farewell.
func (a *Agent) dismissed(ctx context.Context, farewell error) error {
	if err := a.beatOnce(ctx); muster.CodeOf(err) == muster.Unauthenticated {
		return muster.Errorf(muster.Forbidden, "%w", err)
	}
	return farewell
}

// answerTo does what a request asks for.
func (a *Agent) answerTo(ctx context.Context, logs driver.Logs, request muster.AgentRequest) muster.AgentAnswerInput {
	switch {
	case request.Check != nil:
		return a.answerCheck(*request.Check)
	case request.Exec != nil:
		return a.answerExec(ctx, *request.Exec)
	case request.Log == nil:
		return unanswered(muster.Invalid, "this agent does not know what is asked for: upgrade it")
	}
	part, err := readLog(ctx, logs, *request.Log)
	if errors.Is(err, driver.ErrNotFound) {
		return unanswered(muster.NotFound, "there is no machine "+muster.Printable(request.Log.Machine, 80))
	}
	if err != nil {
		a.o.Logger.Error("a log cannot be read", "node", a.o.ID, "machine", request.Log.Machine, "err", err)
		return unanswered(muster.Internal, muster.Storable(err.Error(), 1000))
	}
	return muster.AgentAnswerInput{Offset: part.Offset, Data: part.Data, End: part.End, Ended: part.Ended}
}

func (a *Agent) answerCheck(request muster.CheckRequest) muster.AgentAnswerInput {
	if err := a.services.ReportCheck(request); err != nil {
		return unanswered(muster.CodeOf(err), muster.Printable(err.Error(), 1000))
	}
	return muster.AgentAnswerInput{}
}

// answerExec says that a command will be run, and has that done beside the answer.
func (a *Agent) answerExec(ctx context.Context, request muster.ExecRequest) muster.AgentAnswerInput {
	if _, ok := a.o.Registry.(Sessions); !ok {
		return unanswered(muster.Invalid, "this agent cannot connect a command's streams")
	}
	if _, ok := a.o.Driver.(driver.Exec); !ok {
		return unanswered(muster.Invalid, "this node cannot run commands in instances")
	}
	a.sessions.Go(func() { a.run(ctx, request) })
	return muster.AgentAnswerInput{}
}

func unanswered(code muster.Code, message string) muster.AgentAnswerInput {
	return muster.AgentAnswerInput{Code: &code, Message: message}
}

// readLog reads a part of a log, and waits for one if that is asked for.
func readLog(ctx context.Context, logs driver.Logs, r muster.LogRequest) (driver.LogPart, error) {
	read := driver.LogRead{Offset: r.Offset, Tail: r.Tail, Limit: max(1, min(r.Limit, muster.MaxLogData))}
	look := firstLook
	for until := time.Now().Add(logWait); ; look = min(2*look, longestLook) {
		part, err := readPart(ctx, logs, r, read)
		if err != nil || len(part.Data) > 0 || part.Ended || !r.Wait || time.Now().After(until) || !sleep(ctx, look, nil) {
			return part, err
		}
		read.Offset = part.Offset // a tail stays where it was
	}
}

// readPart reads a part of a machine's log, or of that of a process in it.
func readPart(ctx context.Context, logs driver.Logs, r muster.LogRequest, read driver.LogRead) (driver.LogPart, error) {
	if r.Process == "" {
		return logs.ReadLog(ctx, r.Machine, read)
	}
	processes, ok := logs.(driver.ProcessLogs)
	if !ok {
		return driver.LogPart{}, driver.ErrNotFound
	}
	return processes.ReadProcessLog(ctx, driver.ProcessRef{Machine: r.Machine, Name: r.Process}, read)
}
