// Package deptest holds the house rules as tests: who may import whom and why,
// what the schema must look like, how long a function may get, and that links
// and examples are right. It has no code of its own.
//
// A rule that is in the way is changed here, in the same commit, with its
// reason; it is never worked around.
package deptest
