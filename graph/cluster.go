package graph

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
)

func (r *queryResolver) ClusterHealth(ctx context.Context) (*muster.ClusterHealth, error) {
	return r.registry.Seen(ctx).ClusterHealth(), nil
}

func (r *queryResolver) ServerInfo(context.Context) (*muster.ServerInfo, error) {
	return r.registry.ServerInfo(), nil
}

func (r *mutationResolver) ReleaseBrake(ctx context.Context, input generated.ReleaseBrakeInput) (*generated.ReleaseBrakePayload, error) {
	brake, revision, err := r.registry.ReleaseBrake(ctx, value(input.Reason))
	if err != nil {
		return nil, err
	}
	return &generated.ReleaseBrakePayload{Brake: brake, Revision: revision}, nil
}
