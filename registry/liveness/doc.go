// Package liveness decides from silence alone which nodes turn UNHEALTHY, which
// return, and which are pruned; and when silence must not be believed.
//
// It measures spans on one monotonic clock that the caller reads, and decides
// without I/O; the registry commits what it decides and asks again at the next
// sweep, so a decision that failed to commit is simply made again.
//
// Silence is not believed in three cases. Grace: for one whole span after the
// server began to listen, or could not have heard a beat (it stood still, its
// clock jumped, its port did not answer), nobody expires. The brake: when more
// than half of the nodes (of 3 or more; or both of 2) fall silent together, the
// fault is more likely on this side, and nobody is pruned until they return,
// someone releases it, or it has held for its longest time. A fresh clock:
// whoever is still silent when the brake ends has the whole span before it is
// pruned.
package liveness
