package graph

// Resolver is the root of the resolvers.
type Resolver struct{}
