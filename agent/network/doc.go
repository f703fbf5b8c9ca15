// Package network gives each machine a network: a namespace of its own with lo
// and eth0, and a veth pair to a bridge of the agent's.
//
// Everything is ready before the payload starts, and the machine cannot change
// it. All of it is in the network namespace that the calling process runs in;
// nothing outside is touched but the names in /run/netns. Deleting is complete
// and idempotent. The package does NOT translate addresses or publish ports: a
// machine reaches the node, the other machines of it, and what has a route back.
package network
