package graph

import (
	"context"

	"github.com/99designs/gqlgen/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
	"github.com/muster-cloud/muster/registry"
)

// Resolver is the root of the resolvers.
type Resolver struct{ registry *registry.Registry }

// NewSchema returns the executable schema over a registry. Run its operations
// with the response middleware Loaders, which a list's `changes` needs.
func NewSchema(r *registry.Registry) graphql.ExecutableSchema {
	return generated.NewExecutableSchema(generated.Config{
		Resolvers:  &Resolver{r},
		Directives: generated.DirectiveRoot{Auth: auth},
	})
}

// auth enforces @auth: UNAUTHENTICATED without a name, FORBIDDEN with too small a role.
func auth(ctx context.Context, _ any, next graphql.Resolver, requires muster.Role) (any, error) {
	p := muster.PrincipalOf(ctx)
	switch {
	case p.Name == "":
		return nil, muster.Errorf(muster.Unauthenticated, "no valid key was presented: present one")
	case !p.Allows(requires):
		return nil, muster.Errorf(muster.Forbidden, "the key %s has the role %s; this needs %s", p.Name, p.Role, requires)
	}
	return next(ctx)
}
