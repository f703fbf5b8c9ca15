// Package nspawn is the driver that runs machines with systemd-nspawn.
//
// Each machine has a supervisor: this binary, executed again as `muster shim`. It
// mounts the root (an overlay on the base image) in a mount namespace of its own,
// starts systemd-nspawn in the machine's cgroup, reads the limits back, says when the payload
// runs, and writes down how it ended. It outlives the agent. In the state directory:
//
//	machines/NAME/  machine.json (what to run), state.json (what runs), exit.json (how it ended), console.log (with
//	                a hole where its beginning was; console.json says how far)
//	processes/      the processes of services, in the same form: processes/machines/MACHINE.NAME
//	locks/NAME      held by whoever works on the machine: the launching agent, then the supervisor
//	disks/NAME/     what the machine's payloads wrote; kept between generations
//
// A machine whose lock is held lives; one whose lock is free has ended or lost its supervisor, and is then
// adopted or finished. Nothing else is asked to know: no process list, no machined.
//
// Guarantees: what driver.Driver says; limits hold before the payload counts as running; a launch writes
// a few kilobytes, however large the image is; nothing of a machine but its files survives it.
// Where systemd runs the host, each machine is a transient unit with the supervisor as its main process, and systemd sets the limits.
// Elsewhere the agent makes the cgroups, below its own. The record of a machine says which, so that either finds the other's machines.
// A unit whose supervisor is killed is ended by systemd; a machine that was launched directly goes on and gets a new one.
//
// A process of a service has a supervisor too. Like the commands that are run for a caller, it is in the machine's namespaces and
// limits, and has no privilege that the machine's process 1 lacks, as the decision record 0015 says.
//
// NOT guaranteed: a bound on what a payload writes to a volume, or to its disk without a limit; name servers on a host that has only ones that machines cannot reach,
// and user namespaces: root inside is root outside, without the capabilities that systemd-nspawn drops.
//
// The environment of a payload is hidden, but for one that has a value with a line break: that one is on the command line of
// systemd-nspawn, which users of the host can read.
//
// One driver process works on a state directory at a time.
package nspawn
