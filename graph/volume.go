package graph

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
)

// Volumes lists the volumes of the nodes.
func (r *queryResolver) Volumes(ctx context.Context, nodeID *string, first *int, after *string) (*muster.VolumeConnection, error) {
	return r.registry.Seen(ctx).Volumes(nodeID, muster.PageInput{First: first, After: after})
}

// RemoveVolume deletes a volume.
func (r *mutationResolver) RemoveVolume(ctx context.Context, input muster.RemoveVolumeInput) (*generated.RemoveVolumePayload, error) {
	o, revision, err := r.registry.RemoveVolume(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.RemoveVolumePayload{Volume: o, Revision: revision}, nil
}

// Volumes are the volumes that a node has.
func (r *nodeResolver) Volumes(_ context.Context, n *muster.Node) ([]*muster.Volume, error) {
	return r.registry.VolumesOn(n), nil
}

// Node is the node that has a volume.
func (r *volumeResolver) Node(ctx context.Context, o *muster.Volume) (*muster.Node, error) {
	return r.registry.Seen(ctx).Node(string(o.NodeUID)), nil
}

// Instances are those that use a volume.
func (r *volumeResolver) Instances(_ context.Context, o *muster.Volume) ([]*muster.Instance, error) {
	return r.registry.VolumeUsers(o), nil
}
