package graph

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

func (r *queryResolver) Changes(ctx context.Context, since *muster.Cursor, objectID *string, first *int) (*muster.ChangeConnection, error) {
	return r.registry.Changes(ctx, since, objectID, first)
}

func (r *subscriptionResolver) HealthChanges(ctx context.Context, since *muster.Cursor, initial *bool, filter *muster.HealthFilter) (<-chan *muster.Event, error) {
	return r.registry.WatchHealth(ctx, filter, from(since, initial))
}

func (r *subscriptionResolver) NodeChanges(ctx context.Context, since *muster.Cursor, initial *bool, filter *muster.NodeFilter) (<-chan *muster.Event, error) {
	return r.registry.WatchNodes(ctx, filter, from(since, initial))
}

func (r *subscriptionResolver) InstanceChanges(ctx context.Context, since *muster.Cursor, initial *bool, filter *muster.InstanceFilter) (<-chan *muster.Event, error) {
	return r.registry.WatchInstances(ctx, filter, from(since, initial))
}

// from is where a subscription begins; an absent or null `initial` is true.
func from(since *muster.Cursor, initial *bool) watch.Request {
	return watch.Request{Since: since, Initial: initial == nil || *initial}
}
