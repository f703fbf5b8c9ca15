package transport

import (
	"context"
	"sync"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

// A subscription whose root field takes no cursor is not one of the change log's: its
// resolver makes the events itself, and each subscriber gets an execution of its own.
// It is pulled all the same: the next event is made when the last one was written.

// Produce is what the resolver of such a subscription returns: the events that produce
// yields, each once the last one was taken. When produce returns, the subscription is
// complete, or ends with produce's error. It has to return soon after ctx has ended,
// which yield's error tells too.
func Produce[T any](ctx context.Context, produce func(ctx context.Context, yield func(T) error) error) <-chan T {
	p, ok := ctx.Value(productionKey{}).(*production)
	if !ok { // somebody else executes it, who can be told the events and nothing more
		p = &production{}
	}
	events := make(chan T)
	p.running.Go(func() {
		defer close(events)
		p.finish(func() error {
			return produce(ctx, func(event T) error {
				select {
				case events <- event:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
	})
	return events
}

type productionKey struct{}

// production is the running of one subscription's resolver.
type production struct {
	running sync.WaitGroup
	err     error // how it ended; written before its channel is closed
}

func (p *production) finish(produce func() error) {
	defer func() {
		if v := recover(); v != nil {
			p.err = recovered(context.Background(), v)
		}
	}()
	p.err = produce()
}

// pull executes a subscription for one subscriber until either side ends it. It is a
// task of the connection.
func (c *conn) pull(ctx context.Context, op *operation, operation *graphql.OperationContext) {
	if e := c.h.admitStream(); e != nil {
		c.fail(ctx, op, c.h.failure(ctx, e))
		return
	}
	defer c.h.count.streams.Add(-1)
	ctx, cancel := context.WithCancel(ctx)
	p := &production{}
	defer p.running.Wait()
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			c.fail(ctx, op, c.h.failure(ctx, recovered(ctx, v)))
		}
	}()
	respond, ctx := c.h.exec.DispatchOperation(context.WithValue(ctx, productionKey{}, p), operation)
	errs := c.relay(ctx, op, respond)
	switch {
	case ctx.Err() != nil: // nobody is left to be told
	case errs != nil:
		c.fail(ctx, op, errs)
	case p.err != nil:
		c.fail(ctx, op, c.h.failure(ctx, p.err))
	default:
		c.tell(ctx, message{op: op, kind: finished})
	}
}

// relay has one event after the other made and written until there are no more. The
// errors are those of a resolver that refused.
func (c *conn) relay(ctx context.Context, op *operation, respond graphql.ResponseHandler) gqlerror.List {
	written := make(chan struct{}, 1)
	for {
		response := respond(ctx)
		if response == nil || ctx.Err() != nil {
			return nil
		}
		if len(response.Errors) > 0 && len(response.Data) == 0 {
			return response.Errors
		}
		c.h.count.executions.Add(1)
		c.tell(ctx, message{op: op, kind: event, body: encode(response), written: written})
		select {
		case <-written:
		case <-ctx.Done():
			return nil
		}
	}
}
