// Package failpoint names the steps of what an agent does with its machines, so that a test can end a
// process at each of them.
//
// Whoever takes a step tells a Hook that it was injected with; without one that costs a comparison with nil. The real binary has
// one only when Variable names a socket, on which a test decides what happens next; see FromEnvironment.
//
// Guarantees: each step in Steps is taken by the agent or a supervisor in one of the flows that its name begins with; a hook is
// called after the step's effect is there and before the next one begins.
//
// NOT guaranteed: that every flow takes every step; which ones come depends on the launcher and on what is there already.
package failpoint
