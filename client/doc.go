// Package client is the typed Go client of a muster server: a method for each
// query and mutation of schema.graphqls, and watches that resume by themselves.
//
// What goes in are the inputs and filters of the root package; what comes out
// are the objects of the schema with all their own fields (Node, Instance, …).
//
// It promises: every error of a call is a *muster.Error with one of its codes;
// what is safe to repeat is repeated a few times, with growing jittered pauses,
// while the server is UNAVAILABLE; a watch delivers each change once and in
// order, whatever happens to its connections.
//
// It does NOT promise: caching (each call asks the server); delivery faster than
// the caller takes events (a slow callback makes the server close the connection,
// and the watch goes on from where it was); that a call that was not repeated
// did not happen (UNAVAILABLE means that it may have).
package client

//go:generate go tool genqlient genqlient.yaml
