// Package watch is the change hub: it keeps the newest changes in a ring that all
// watchers share, and reads older ones from the log.
//
// A watcher is a place, not a buffer. A Follower knows the revision it has
// reached and is asked for what comes next; nothing is queued for it, so one that
// is never asked costs nothing and delays nobody. What a filter lets through is
// worked out once for all followers that share it, in a Scan.
//
// Guarantees. Followers get every change that their filter lets through, in order
// of revision, each once, whether it comes from the ring or from the log; a place
// that cannot be continued without a gap ends with COMPACTED. Publish never waits
// for a watcher. Memory is bounded by the ring, a few blocks of the log, and a
// few words a follower.
//
// Non-guarantees. The hub starts no goroutines and commits nothing: what is
// published has to be durable. Between two looks a follower holds no copy of the
// log, so one that falls behind the log's floor is told so, not waited for.
package watch
