// Package drivertest has the conformance suite that every driver passes, and
// Fake, a driver in memory for tests of what stands on one.
//
// The suite asserts what driver.Driver says, by effect, and after each case that
// nothing is left. It does NOT assert isolation or limits, which a fake
// cannot have; a real driver's own tests do.
//
// Fake keeps its machines on a Host, so that a test can abandon one Fake and
// make another on the same Host, as when an agent restarts. Payloads are Go
// functions. Nothing in it takes time unless a test says so.
package drivertest
