package graph

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
)

func (r *queryResolver) Image(_ context.Context, name string) (*muster.Image, error) {
	if err := muster.CheckName("name", name); err != nil {
		return nil, err
	}
	return r.registry.Image(name), nil
}

func (r *queryResolver) Images(_ context.Context, first *int, after *string) (*muster.ImageConnection, error) {
	return r.registry.Images(muster.PageInput{First: first, After: after})
}

func (r *mutationResolver) RemoveImage(ctx context.Context, input generated.RemoveImageInput) (*generated.RemoveImagePayload, error) {
	i, usedBy, revision, err := r.registry.RemoveImage(ctx, input.Name)
	if err != nil {
		return nil, err
	}
	return &generated.RemoveImagePayload{Image: i, UsedBy: usedBy, Revision: revision}, nil
}
