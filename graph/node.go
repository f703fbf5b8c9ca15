package graph

import (
	"context"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
)

func (r *queryResolver) Node(ctx context.Context, id string) (*muster.Node, error) {
	if err := muster.CheckID("id", id); err != nil {
		return nil, err
	}
	return r.registry.Seen(ctx).Node(id), nil
}

func (r *queryResolver) Nodes(ctx context.Context, filter *muster.NodeFilter, first *int, after *string) (*muster.NodeConnection, error) {
	return r.registry.Seen(ctx).Nodes(filter, muster.PageInput{First: first, After: after})
}

func (r *queryResolver) Assignments(ctx context.Context, uid string, incarnation int64) (*muster.Assignments, error) {
	return r.registry.Assignments(ctx, muster.NodeUID(uid), incarnation)
}

func (r *queryResolver) Peers(ctx context.Context, uid string, incarnation int64) (*muster.Peers, error) {
	return r.registry.Peers(ctx, muster.NodeUID(uid), incarnation)
}

func (r *mutationResolver) RegisterNode(ctx context.Context, input muster.RegisterNodeInput) (*generated.RegisterNodePayload, error) {
	out, err := r.registry.RegisterNode(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.RegisterNodePayload{Node: out.Node, Server: r.registry.ServerInfo(), Remove: out.Remove, Revision: out.Revision}, nil
}

func (r *mutationResolver) Heartbeat(ctx context.Context, input muster.HeartbeatInput) (*muster.Beat, error) {
	return r.registry.Heartbeat(ctx, input)
}

func (r *mutationResolver) CordonNode(ctx context.Context, input generated.CordonNodeInput) (*generated.CordonNodePayload, error) {
	n, revision, err := r.registry.CordonNode(ctx, input.ID, value(input.Reason))
	if err != nil {
		return nil, err
	}
	return &generated.CordonNodePayload{Node: n, Revision: revision}, nil
}

func (r *mutationResolver) UncordonNode(ctx context.Context, input generated.UncordonNodeInput) (*generated.UncordonNodePayload, error) {
	n, revision, err := r.registry.UncordonNode(ctx, input.ID)
	if err != nil {
		return nil, err
	}
	return &generated.UncordonNodePayload{Node: n, Revision: revision}, nil
}

func (r *mutationResolver) DrainNode(ctx context.Context, input muster.DrainNodeInput) (*generated.DrainNodePayload, error) {
	n, revision, err := r.registry.DrainNode(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.DrainNodePayload{Node: n, Revision: revision}, nil
}

func (r *mutationResolver) LabelNode(ctx context.Context, input muster.LabelInput) (*generated.LabelNodePayload, error) {
	n, revision, err := r.registry.LabelNode(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.LabelNodePayload{Node: n, Revision: revision}, nil
}

func (r *mutationResolver) RemoveNode(ctx context.Context, input generated.RemoveNodeInput) (*generated.RemoveNodePayload, error) {
	n, revision, err := r.registry.RemoveNode(ctx, input.ID)
	if err != nil {
		return nil, err
	}
	return &generated.RemoveNodePayload{Node: n, Revision: revision}, nil
}

func (r *mutationResolver) ForgetNode(ctx context.Context, input generated.ForgetNodeInput) (*generated.ForgetNodePayload, error) {
	n, revision, err := r.registry.ForgetNode(ctx, input.ID)
	if err != nil {
		return nil, err
	}
	return &generated.ForgetNodePayload{Node: n, Revision: revision}, nil
}

func (r *nodeResolver) UnhealthyBecause(_ context.Context, n *muster.Node) (*muster.Evidence, error) {
	return r.registry.NodeEvidence(n), nil
}

func (r *nodeResolver) LastSeen(_ context.Context, n *muster.Node) (*time.Time, error) {
	at := r.registry.LastSeen(n)
	return &at, nil
}

func (r *nodeResolver) DesiredRevision(_ context.Context, n *muster.Node) (int64, error) {
	return r.registry.DesiredRevision(n), nil
}

func (r *nodeResolver) Allocated(_ context.Context, n *muster.Node) (*muster.Capacity, error) {
	return r.registry.Allocated(n), nil
}

func (r *nodeResolver) Free(_ context.Context, n *muster.Node) (*muster.Capacity, error) {
	return r.registry.Free(n), nil
}

func (r *nodeResolver) Usage(_ context.Context, n *muster.Node) (*muster.Usage, error) {
	return r.registry.NodeUsage(n), nil
}

func (r *nodeResolver) Instances(ctx context.Context, n *muster.Node, first *int, after *string) (*muster.InstanceConnection, error) {
	uid := string(n.UID)
	return r.registry.Seen(ctx).Instances(&muster.InstanceFilter{NodeID: &uid}, muster.PageInput{First: first, After: after})
}

func (r *nodeResolver) Changes(ctx context.Context, n *muster.Node, first *int) ([]*muster.Change, error) {
	return lastChanges(ctx, string(n.UID), first)
}

// value is what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
