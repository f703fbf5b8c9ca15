// Package driver is the seam between the agent and whatever runs machines: the
// real one is agent/nspawn, and driver/drivertest has a fake beside a
// conformance suite that both pass.
//
// A driver keeps what it needs on the host, so that machines outlive the agent:
// a new Driver on the same state directory lists and controls what an earlier
// one launched. It promises that nothing of a removed machine is left: no
// process, mount, namespace, interface, cgroup or file. It does NOT decide
// anything: what should run is the agent's and the registry's business.
package driver
