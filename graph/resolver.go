package graph

import (
	"github.com/99designs/gqlgen/graphql"

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
		Directives: generated.DirectiveRoot{Auth: gate{r}.auth},
	})
}
