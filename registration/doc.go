// Package registration is the discovery feed: entries of services in a JetStream
// stream, one message a subject, in the format that choria-io/ccm speaks.
//
// Each step of the protocol has a file: subject.go, entry.go and ttl.go are the text,
// message.go reads what is in the stream, stream.go keeps the stream as it must be, publish.go sends and removes, keeper.go
// keeps what is desired published, watch.go follows, lookup.go reads what is there,
// prometheus.go writes targets, embedded.go runs a NATS server in this process, and connect.go reaches one.
//
// It promises: what a Keeper is told to publish is in the stream, or on its way
// there while the server can be reached, and what it is told no longer is removed at
// once and cannot come back by a late retry; a Mirror tells of every entry that is in the stream
// and of every one that is no longer, also after the stream was deleted or the server restarted;
// what others write is never trusted.
//
// It does not promise an order between subjects, nor that each state of an entry is seen
// by a Mirror: only the last is kept. It does not know services, health or who may
// publish; that is the registry's to decide.
package registration
