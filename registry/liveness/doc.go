// Package liveness decides from silence alone which nodes turn UNHEALTHY, which
// return, and which are pruned.
//
// It measures spans on one monotonic clock that the caller reads, and decides
// without I/O; the registry commits what it decides and asks again at the next
// sweep, so a decision that failed to commit is simply made again. Nobody expires
// before one whole grace has passed since the server began to listen.
package liveness
