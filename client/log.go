package client

import (
	"context"
	"errors"
	"time"

	"github.com/Khan/genqlient/graphql"
	"github.com/cenkalti/backoff/v5"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// LogOptions say what to read of an instance's or a service's log; the zero value reads all that
// is kept.
type LogOptions struct {
	After  string // go on after this place, the Place of an earlier piece; default begin anew
	Tail   *int   // without After: begin so many lines before the end; default all that is kept
	Follow bool   // go on with what will be written, until the instance is terminated; default false

	OnDisconnect func(err error, pause time.Duration) // a connection was lost, or the node is away; the next try is after pause
}

// InstanceLogs delivers what an instance wrote to its console to each, piece by piece,
// and returns nil after the last one. While each runs nothing more is asked for. What
// passes, such as a lost connection or a node that is away, is waited for with
// Follow, and otherwise tried again a few times; nothing is missed or told twice, as far
// as the node still has it.
func (c *Client) InstanceLogs(ctx context.Context, id muster.InstanceID, o LogOptions, each func(muster.LogPiece) error) error {
	return c.readLog(ctx, &logReader{name: "InstanceLogs", document: operations.InstanceLogs_Operation, id: string(id), options: o, each: each})
}

// ServiceLogs is InstanceLogs for what a service wrote to its standard output and error.
func (c *Client) ServiceLogs(ctx context.Context, id muster.ServiceID, o LogOptions, each func(muster.LogPiece) error) error {
	return c.readLog(ctx, &logReader{name: "ServiceLogs", document: operations.ServiceLogs_Operation, id: string(id), options: o, each: each})
}

func (c *Client) readLog(ctx context.Context, l *logReader) error {
	pauses := &backoff.ExponentialBackOff{
		InitialInterval: firstPause, MaxInterval: longestPause, Multiplier: 2, RandomizationFactor: 0.5,
	}
	pauses.Reset()
	l.client = c
	o := l.options
	for tries := uint(1); ; tries++ {
		before := l.options.After
		err := l.connection(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		loss, ok := errors.AsType[*lostError](err)
		if !ok {
			return unwrapCallback(err)
		}
		if l.options.After != before {
			pauses.Reset()
			tries = 1
		}
		if !o.Follow && tries >= c.options.Tries {
			return loss.err
		}
		pause := pauses.NextBackOff()
		if o.OnDisconnect != nil {
			o.OnDisconnect(loss.err, pause)
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// logReader is one reading across its connections.
type logReader struct {
	client   *Client
	name     string // of the operation
	document string
	id       string
	options  LogOptions
	each     func(muster.LogPiece) error
}

// connection reads on one connection: nil at the log's end, a *lostError when another
// one may do better.
func (l *logReader) connection(ctx context.Context) error {
	variables := map[string]any{"id": l.id, "follow": l.options.Follow}
	if l.options.After != "" {
		variables["after"] = l.options.After
	} else if l.options.Tail != nil {
		variables["tail"] = *l.options.Tail
	}
	return pull(ctx, l.client, operation{l.name, l.document, variables}, func(piece *muster.LogPiece) error {
		if err := l.each(*piece); err != nil {
			return &callbackError{err}
		}
		l.options.After = piece.Place
		return nil
	})
}

// operation is a subscription with its variables.
type operation struct {
	name, document string
	variables      map[string]any
}

// pull subscribes on a connection of its own and delivers until the subscription is
// complete, which is no error. Nothing is read while each runs.
func pull[T any](ctx context.Context, c *Client, what operation, each func(*T) error) error {
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.subscribe(what.name, what.document, what.variables); err != nil {
		return err
	}
	for {
		event, err := next[T](ctx, s)
		if errors.Is(err, errComplete) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := each(event); err != nil {
			return err
		}
	}
}

// AgentRequests delivers what the server asks a node's agent for, over one connection:
// UNAVAILABLE when it is lost, or did not come about. UNKNOWN_NODE: register again.
func (c *Client) AgentRequests(ctx context.Context, uid muster.NodeUID, incarnation int64, each func(muster.AgentRequest)) error {
	variables := map[string]any{"uid": uid, "incarnation": incarnation}
	err := pull(ctx, c, operation{"AgentRequests", operations.AgentRequests_Operation, variables}, func(request *muster.AgentRequest) error {
		each(*request)
		return nil
	})
	if loss, ok := errors.AsType[*lostError](err); ok {
		return loss.err
	}
	if err == nil {
		return muster.Errorf(muster.Unavailable, "%s asks for nothing more", c.endpoint)
	}
	return err
}

// AnswerAgentRequest answers such a request, and reports whether somebody still
// waited for it.
func (c *Client) AnswerAgentRequest(ctx context.Context, input muster.AgentAnswerInput) (wanted bool, err error) {
	answer, err := once(ctx, c, func(ctx context.Context, api graphql.Client) (*operations.AnswerAgentRequestAnswerAgentRequestAnswerAgentRequestPayload, error) {
		answer, err := operations.AnswerAgentRequest(ctx, api, input)
		if err != nil {
			return nil, err
		}
		return answer.AnswerAgentRequest, nil
	})
	if err != nil {
		return false, err
	}
	return answer.Wanted, nil
}
