// Package graph is the GraphQL face of the registry: thin resolvers, a file a
// noun, on what gqlgen generates from schema.graphqls into graph/generated.
//
// A resolver parses, makes one call, and returns; rules live in the registry,
// limits in graph/transport. Lists of children come from memory, and change logs
// of many objects from one read (loaders.go), so that no query is N+1.
package graph
