package client

import (
	"context"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about the cluster and itself.
type (
	ClusterHealth    = operations.ClusterHealth
	StatusCount      = operations.StatusCount
	Condition        = operations.Condition
	Brake            = operations.Brake
	Evidence         = operations.Evidence
	ServerInfo       = operations.ServerInfo
	Change           = operations.Change
	ChangeEdge       = operations.ChangeEdge
	ChangeConnection = operations.ChangeConnection
)

// ClusterHealth returns how the cluster is: how many nodes and instances are in
// each status, the conditions that hold, and the brake.
func (c *Client) ClusterHealth(ctx context.Context) (*ClusterHealth, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*ClusterHealth, error) {
		answer, err := operations.ReadClusterHealth(ctx, api)
		if err != nil {
			return nil, err
		}
		return answer.ClusterHealth, nil
	})
}

// ReleaseBrake ends the brake, so that nodes that are silent are pruned again;
// reason is for people. CONFLICT: it does not hold.
func (c *Client) ReleaseBrake(ctx context.Context, reason string) (*Brake, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Brake, error) {
		answer, err := operations.ReleaseBrake(ctx, api, reason)
		if err != nil || answer.ReleaseBrake == nil {
			return nil, err
		}
		return answer.ReleaseBrake.Brake, nil
	})
}

// ServerInfo returns what the server is and where its history stands.
func (c *Client) ServerInfo(ctx context.Context) (*ServerInfo, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*ServerInfo, error) {
		answer, err := operations.ReadServerInfo(ctx, api)
		if err != nil {
			return nil, err
		}
		return answer.ServerInfo, nil
	})
}

// ChangesInput selects changes of the log; the zero value is its oldest page.
type ChangesInput struct {
	Since    string // a cursor; default the oldest that is kept
	ObjectID string // an instance's id, or a node's id or uid; default every object
	First    int    // how many at most, 1 to 100; default the server's, 20
}

// Changes returns a page of the change log, oldest first. COMPACTED: Since is
// older than the log, or of another history.
func (c *Client) Changes(ctx context.Context, in ChangesInput) (*ChangeConnection, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*ChangeConnection, error) {
		answer, err := operations.ListChanges(ctx, api, optional(in.Since), optional(in.ObjectID), optional(in.First))
		if err != nil {
			return nil, err
		}
		return answer.Changes, nil
	})
}

// optional returns nil for the zero value.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
