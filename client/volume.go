package client

import (
	"context"
	"iter"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about volumes.
type (
	Volume           = operations.Volume
	VolumeEdge       = operations.VolumeEdge
	VolumeState      = operations.VolumeState
	VolumeConnection = operations.VolumeConnection
)

// Volumes returns a page of volumes in order of their name; with a node (id or uid)
// only those on it.
func (c *Client) Volumes(ctx context.Context, node *string, page muster.PageInput) (*VolumeConnection, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*VolumeConnection, error) {
		answer, err := operations.ListVolumes(ctx, api, node, page.First, page.After)
		if err != nil {
			return nil, err
		}
		return answer.Volumes, nil
	})
}

// AllVolumes goes through every volume, of one node if one is given, page by page. It
// ends with the first error.
func (c *Client) AllVolumes(ctx context.Context, node *string) iter.Seq2[*Volume, error] {
	return all(func(page muster.PageInput) ([]*Volume, PageInfo, error) {
		answer, err := c.Volumes(ctx, node, page)
		if err != nil {
			return nil, PageInfo{}, err
		}
		volumes := make([]*Volume, len(answer.Edges))
		for i, edge := range answer.Edges {
			volumes[i] = edge.Node
		}
		return volumes, answer.PageInfo, nil
	})
}

// RemoveVolume has a volume deleted with all that is in it; node (id or uid) may be nil
// when only one has it. CONFLICT: an instance uses it.
func (c *Client) RemoveVolume(ctx context.Context, name string, node *string) (*Volume, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Volume, error) {
		answer, err := operations.RemoveVolume(ctx, api, name, node)
		if err != nil || answer.RemoveVolume == nil {
			return nil, err
		}
		return answer.RemoveVolume.Volume, nil
	})
}
