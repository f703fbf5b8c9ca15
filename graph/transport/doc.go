// Package transport carries GraphQL to and from clients: over HTTP, and over
// WebSocket with the graphql-transport-ws protocol. It stands on gqlgen's
// executor and replaces gqlgen's own transports (docs/decisions/0001).
//
// Guarantees. Every limit is checked before it costs: on the body, the text, the
// document, the operation, the connection. Delivery is pulled: a connection's
// writer takes the next due payload when the socket accepts it, there is no queue
// a subscription, and a client that stops reading delays nobody and is closed
// after a while. Identical subscriptions share one execution and one encoding a
// revision. Errors that leave the process are muster's, with a code of the closed
// list; anything else is INTERNAL with a reference into the log. A subscription that
// does not follow the change log is executed for each subscriber alone: see Produce.
//
// Non-guarantees. It knows neither the registry nor the schema's resolvers; it
// leaves the Host header, TLS and the listener's timeouts to the server. A payload
// that is shared resolves the links of its object when it is first delivered.
package transport
