// Package store keeps the registry's state in an SQLite database, muster.db in
// the data directory. It is the only package with SQL.
//
// It guarantees:
//   - One process at a time has the data directory (flock on muster.lock).
//   - Commit is one durable transaction (WAL, synchronous=FULL) and says which of
//     three things happened: committed, not committed, or not known.
//   - What Load returns is what was committed: its JSON is the same byte for byte.
//   - The log of changes, from its floor on, has every change; below the floor each
//     live object keeps its newest one. So a replay from nothing gives the present,
//     and the newest change of each object at or below any revision from the floor
//     on gives the state at that revision.
//   - Reading the log never blocks a commit.
//   - A database that is damaged, of another program, or newer than this binary is
//     refused and not modified.
//
// It does not guarantee:
//   - that it validates anything: what is legal is the registry's business;
//   - that two batches are safe at the same time: there is one committer, and the
//     counter catches a second one.
package store
