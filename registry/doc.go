// Package registry is what muster is about: the use cases on nodes and
// instances, the state in memory that answers them, and the commit pipeline that
// makes every change durable before anyone sees it.
//
// Guarantees. Reads come from an immutable snapshot and issue no SQL, except the
// change log's. A mutation is answered after the database has committed it, and
// becomes visible then and not before; one that answers UNAVAILABLE may have
// happened, and can be repeated with the same requestId. Revisions rise by one a
// change. A heartbeat waits for no commit.
//
// Non-guarantees. A call to an agent (a nudge) may get lost: beats heal it. It
// does not know SQL, GraphQL or HTTP; it declares the interfaces that it needs.
package registry
