package transport

import (
	"context"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/muster-cloud/muster"
)

// execute runs a query or mutation to its result, or prepares a subscription for
// the writer.
func (c *conn) execute(ctx context.Context, op *operation, params graphql.RawParams, size int) {
	ctx = graphql.StartOperationTrace(muster.WithPrincipal(ctx, c.principal))
	defer func() {
		if v := recover(); v != nil {
			c.fail(ctx, op, c.h.failure(ctx, recovered(ctx, v)))
		}
	}()
	operation, found := c.h.exec.CreateOperationContext(ctx, &params)
	if found != nil {
		c.fail(ctx, op, c.h.rejected(ctx, operation, found))
		return
	}
	if err := c.h.tooLarge(size, operation); err != nil {
		c.fail(ctx, op, c.h.failure(ctx, err))
		return
	}
	if operation.Operation.Operation == ast.Subscription {
		if c.h.guard.planOf(operation).produced {
			c.tasks.Go(func() { c.pull(ctx, op, operation) })
		} else {
			c.follow(ctx, op, operation)
		}
		return
	}
	c.h.count.operations.Add(1)
	timed, cancel := context.WithTimeout(ctx, c.h.options.OperationTime)
	defer cancel()
	respond, timed := c.h.exec.DispatchOperation(timed, operation)
	if response := respond(timed); response != nil {
		c.tell(ctx, message{op: op, kind: result, body: encode(response)})
	} else {
		c.fail(ctx, op, c.h.failure(ctx, timed.Err()))
	}
}

// follow joins the group of a subscription and hands the membership to the writer.
func (c *conn) follow(ctx context.Context, op *operation, operation *graphql.OperationContext) {
	timed, cancel := context.WithTimeout(ctx, c.h.options.OperationTime)
	defer cancel()
	m, errs := c.h.groups.join(timed, operation)
	if errs != nil {
		c.fail(ctx, op, errs)
		return
	}
	m.op = op
	if !c.tell(ctx, message{op: op, kind: joined, member: m}) {
		m.leave()
	}
}

func (c *conn) fail(ctx context.Context, op *operation, errs gqlerror.List) {
	c.tell(ctx, message{op: op, kind: failure, body: encodeJSON(errs)})
}
