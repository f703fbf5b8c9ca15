// Package cgroup makes groups below the process's own ones, on v1, hybrid and v2 hosts
// alike, limits them, and ends what is in them.
//
// Groups are always relative to the own group, so that limits which the host sets for the
// agent stay in force. Limits can be read back. On a hybrid host the cgroup2 hierarchy,
// though it has no controllers, is joined too: its cgroup.kill ends a whole tree at once. The
// package does NOT watch groups and does NOT touch cpuset or devices.
package cgroup
