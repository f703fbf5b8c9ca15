package graph

import (
	"context"

	"github.com/99designs/gqlgen/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

// gate lets callers to the fields that their keys are for, and has the audit know of
// what they tried.
type gate struct{ registry *registry.Registry }

// auth enforces @auth: UNAUTHENTICATED without a key, FORBIDDEN with one of another role.
func (g gate) auth(ctx context.Context, _ any, next graphql.Resolver, requires muster.Access) (any, error) {
	p := muster.PrincipalOf(ctx)
	field := graphql.GetFieldContext(ctx)
	if err := admit(p, requires); err != nil {
		p.Action = field.Field.Name
		g.registry.AuditRefused(p, err)
		return nil, err
	}
	if !changes(field, requires) {
		return next(ctx)
	}
	p.Action = field.Field.Name
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

func admit(p muster.Principal, requires muster.Access) error {
	switch {
	case p.Role == "":
		return muster.Errorf(muster.Unauthenticated, "no access key was presented: send one as the header Authorization: Bearer KEY")
	case p.Role == muster.JoiningNode && requires != muster.ForJoining:
		return muster.Errorf(muster.Forbidden, "a join token is for joining alone: use an access key")
	case !p.Allows(requires):
		return muster.Errorf(muster.Forbidden, "the key %s has the role %s; this needs %s", p.Name, p.Role, requires)
	}
	return nil
}
