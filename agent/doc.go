// Package agent is the process on a node: it registers and beats, fetches what
// the registry wants of the node, makes it so through a driver.Driver, and
// reports what is there.
//
// It promises: a machine outlives its agent, and the next agent adopts it as it
// runs; two generations of one instance never run at once; nothing is removed
// that the registry has not named as terminated, whatever it leaves out and
// whichever history it speaks of; beats wait for nothing; lost nudges, lost
// reports and restarts on either side heal by the next beat. A report that names
// an applied revision has every instance of that revision in it: as it runs, or
// as about to be launched, or as failed.
//
// It does NOT promise: deciding where anything runs, starting what ended by
// itself, or telling why the registry wants something. The environment of an
// instance is never logged.
package agent
