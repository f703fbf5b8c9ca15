// Package proc keeps the processes of services as somebody wants them: running,
// started again by a policy when they end, stopped, or gone.
//
// What it has to remember of a process it writes beside that, by the driver: a
// Supervisor that comes after another one, as when the agent restarts, goes on
// with the same processes, counts and pauses. A process that ended with its instance
// has not failed: it is started again when the instance runs, and that counts
// for nothing.
//
// It promises that there is never more than one process of a name, that no more
// are started than the policy allows, and that a process of an older generation is
// stopped before one of a newer is started. It does NOT fetch what is to run, check
// it, or know which services there should be.
package proc
