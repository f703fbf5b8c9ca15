// Package server assembles the control plane: the registry on its store, the
// GraphQL transports, the pages and probes around them, one route a file.
//
// It promises an order. Open takes the listening address first and the data
// directory second, so that whatever fails leaves nothing half done; Run serves
// until its context ends and then, in this order, stops accepting, ends the
// subscriptions, lets the requests in flight finish, stops the registry (which
// flushes), and only Close gives the store and its lock back.
//
// It promises that only the hosts it was told of are served, so that a web page
// cannot rebind its way in, and that nothing listens off loopback unless it was
// asked to in so many words. It does NOT authenticate anybody yet, and it holds
// no rule of the registry: those are in registry.
package server
