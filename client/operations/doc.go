// Package operations is what genqlient made of client/operations.graphql: one
// function a query or mutation, and the types of what they answer. Package
// client is the face of it; use that.
package operations
