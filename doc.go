// Package muster is the vocabulary of a small cloud's registry: nodes,
// instances and changes, with their validation and their status tables.
//
// It holds what every other package speaks of and nothing that does anything:
// no I/O, no clock, no goroutine, and no import but the standard library. A
// struct of this package is the same one in the database, in memory and in the
// API; its gorm and json tags are plain strings. Objects are immutable once they
// have been handed over: change a copy (Clone).
package muster
