package graph

import (
	"context"

	"github.com/99designs/gqlgen/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/transport"
	"github.com/muster-cloud/muster/registry"
)

// gate lets callers to the fields that their keys are for, and has the audit know of
// what they tried.
type gate struct{ registry *registry.Registry }

// auth enforces @auth: UNAUTHENTICATED without a key, FORBIDDEN with one of another role.
func (g gate) auth(ctx context.Context, _ any, next graphql.Resolver, requires muster.Access) (any, error) {
	p := muster.PrincipalOf(ctx)
	field := graphql.GetFieldContext(ctx)
	if err := p.Check(requires); err != nil {
		g.registry.AuditRefused(doing(ctx, transport.Caller(ctx), field), err)
		return nil, err
	}
	if !changes(field, requires) {
		return next(ctx)
	}
	p = doing(ctx, p, field)
	out, err := next(muster.WithPrincipal(ctx, p))
	if err != nil {
		g.registry.AuditRefused(p, err)
	}
	return out, err
}

// changes reports whether a field is for the audit: a mutation, but not what agents
// say all the time.
func changes(field *graphql.FieldContext, requires muster.Access) bool {
	return field.Object == "Mutation" && requires != muster.ForNode
}

// doing is the principal with what it is about to do.
func doing(ctx context.Context, p muster.Principal, field *graphql.FieldContext) muster.Principal {
	p.Action, p.Target = field.Field.Name, targetOf(ctx, field)
	return p
}

// targetOf is what a caller says that a field is about: an id or a name in its
// arguments, or in its input.
func targetOf(ctx context.Context, field *graphql.FieldContext) string {
	args := field.Field.ArgumentMap(graphql.GetOperationContext(ctx).Variables)
	if input, ok := args["input"].(map[string]any); ok {
		args = input
	}
	for _, name := range []string{"id", "uid", "name", "nodeId"} {
		if text, ok := args[name].(string); ok && text != "" {
			return text
		}
	}
	return ""
}
