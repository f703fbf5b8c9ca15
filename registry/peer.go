package registry

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/muster-cloud/muster"
)

// peerSum is what a node adds to the tag of all peers: it follows from what the others
// route by, and from nothing else. A node that is not in the registry adds nothing.
func peerSum(n *muster.Node) uint64 {
	if n == nil || !n.Live() {
		return 0
	}
	return digest(string(n.UID), string(n.ID), n.Addr, n.Subnet)
}

func digest(words ...string) uint64 {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return binary.BigEndian.Uint64(sum[:8])
}

// peersTag differs between two views when the peers do.
func (r *Registry) peersTag(v View) string {
	return fmt.Sprintf("%016x", v.meta().peers+digest(r.opts.InstanceNetwork.String()))
}

// Peers returns the other nodes and the networks of their instances.
// UNKNOWN_NODE: register again; SUPERSEDED: stop.
func (r *Registry) Peers(ctx context.Context, uid muster.NodeUID, incarnation int64) (*muster.Peers, error) {
	v := r.View()
	own, err := r.speaker(ctx, v, uid, incarnation)
	if err != nil {
		return nil, err
	}
	p := &muster.Peers{Tag: r.peersTag(v), Network: r.opts.InstanceNetwork.String(), Subnet: own.Subnet, Nodes: []*muster.Peer{}}
	for n := range v.LiveNodes() {
		if n.UID != uid {
			p.Nodes = append(p.Nodes, &muster.Peer{ID: n.ID, Addr: n.Addr, Subnet: n.Subnet})
		}
	}
	return p, nil
}
