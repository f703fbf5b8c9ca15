// Package server assembles the control plane: the registry on its store, the
// GraphQL transports, the pages and probes around them, one route a file.
//
// It promises an order. Open takes the listening address first and the data
// directory second, so that whatever fails leaves nothing half done; Run serves
// until its context ends and then, in this order, stops accepting, ends the
// subscriptions, lets the requests in flight finish, stops the registry (which
// flushes), and only Close gives the store and its lock back.
//
// It promises that only the hosts it was told of are served, so that a web page cannot
// rebind its way in; that what comes from other machines comes by TLS, unless it was asked
// for less in so many words; that every route says whom it is for; and that a certificate
// is renewed, an authority replaced, without a connection being cut. It holds no rule of
// the registry: those are in registry.
package server
