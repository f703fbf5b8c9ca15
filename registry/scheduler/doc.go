// Package scheduler decides where an instance goes: it filters the nodes, scores
// the ones that are left, and explains why the others were not.
//
// It is pure: no I/O, no clock, no state. The same ask and the same candidates
// give the same verdict. It does NOT reserve anything; the registry does, in the
// same commit.
package scheduler
