package agent

import (
	"context"

	"github.com/muster-cloud/muster"
)

// Router connects the node's instances with those of the other nodes.
type Router interface {
	// Route makes everything as it has to be with these peers. It is called when they have moved, and with
	// every beat, for others on the host may have undone it.
	Route(ctx context.Context, peers *muster.Peers) error
}

// route keeps the routes to the other nodes, if somebody is there to do so.
func (a *Agent) route(ctx context.Context) error {
	if a.o.Router == nil {
		return nil
	}
	return a.whenever(ctx, a.routeDue, "the routes to the other nodes are not right yet", a.routeOnce)
}

// routeOnce asks for the peers if they have moved.
func (a *Agent) routeOnce(ctx context.Context) error {
	is, _ := a.identity()
	a.mu.Lock()
	registered, peers, tag := a.state.registered, a.state.peers, a.state.peersTag
	a.mu.Unlock()
	if !registered {
		return nil // the registration will make it due again
	}
	if peers == nil || peers.Tag != tag {
		now, err := a.o.Registry.Peers(ctx, is.UID, is.Incarnation)
		if err != nil {
			return err
		}
		if peers == nil || peers.Tag != now.Tag {
			a.o.Logger.Info("the peers moved", "node", a.o.ID, "nodes", len(now.Nodes))
		}
		peers = now
		a.mu.Lock()
		a.state.peers = peers
		a.mu.Unlock()
	}
	return a.o.Router.Route(ctx, peers)
}
