// Package testhost gives a test a host that systemd runs: a Debian made of the packages that
// this machine has, booted in a container, with a network and cgroups of its own.
//
// Boot returns once systemd is up, within a few seconds, and t.Cleanup ends all of it, whatever runs inside. What a test
// that was killed has left is swept at the next Boot. It needs root and the packages that
// internal/build/setup.sh installs.
//
// Limits that systemd sets inside bind, unless ReadOnlyGroups asks for a host on which they don't: that is
// what a container's systemd does by default. It does NOT offer pure cgroup v2: the machine's
// kernel has one arrangement for all; see internal/build/v2.
package testhost
