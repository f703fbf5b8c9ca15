// Package check finds out whether services do what they should.
//
// A Checker runs the checks of one service, each in its own time, and says when the status
// of one turns. A status turns only after as many runs in a row as the check says,
// in both directions; what a run prints is kept beside it and never makes a change. Before the first
// run a check is UNKNOWN; a service has an interval to start, in which a run that fails at once is tried again in
// a moment and does not count. One that cannot be run, since there is no such command or no instance, is UNKNOWN
// with the reason, never OK. One that takes too long is ended, with all that it has started, and CRITICAL.
//
// Checks run where the service's address lives: how to connect and to execute there is
// given. The package does NOT know instances, and does NOT judge what follows from a status.
package check
