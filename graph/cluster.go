package graph

import (
	"context"

	"github.com/muster-cloud/muster"
)

func (r *queryResolver) ClusterHealth(context.Context) (*muster.ClusterHealth, error) {
	return r.registry.ClusterHealth(), nil
}

func (r *queryResolver) ServerInfo(context.Context) (*muster.ServerInfo, error) {
	return r.registry.ServerInfo(), nil
}
