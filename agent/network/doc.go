// Package network gives each machine a network: a namespace of its own with lo
// and eth0, and a veth pair to a bridge of the agent's.
//
// Everything is ready before the payload starts, and the machine cannot change
// it. All of it is in the network namespace that the calling process runs in;
// nothing outside is touched but the names in /run/netns. Deleting is complete
// and idempotent.
//
// A Router connects the node's machines with those of other nodes, by a route of the main table for each node that is
// in a network of this one's, marked with Protocol; and with everything else, by masquerading in a table of nftables
// of its own. It touches nobody else's routes and rules. It does NOT pass packets through a firewall that
// drops what is forwarded, or route to nodes behind routers.
//
// A Publisher leads ports of the node to its machines, in a second table of its own.
package network
