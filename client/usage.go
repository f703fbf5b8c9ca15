package client

import (
	"context"
	"iter"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about what is used.
type (
	InstanceUsage = operations.InstanceUsage
	NodeUsage     = operations.NodeUsage
)

// InstanceUsages goes through what each instance uses that the filter selects, page
// by page. It ends with the first error.
func (c *Client) InstanceUsages(ctx context.Context, filter *muster.InstanceFilter) iter.Seq2[*InstanceUsage, error] {
	return all(func(page muster.PageInput) ([]*InstanceUsage, PageInfo, error) {
		answer, err := repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*operations.ListInstanceUsagesResponse, error) {
			return operations.ListInstanceUsages(ctx, api, filter, page.First, page.After)
		})
		if err != nil || answer.Instances == nil {
			return nil, PageInfo{}, err
		}
		usages := make([]*InstanceUsage, len(answer.Instances.Edges))
		for i, edge := range answer.Instances.Edges {
			usages[i] = edge.Node
		}
		return usages, answer.Instances.PageInfo, nil
	})
}

// NodeUsages goes through what each node uses that the filter selects, page by page.
// It ends with the first error.
func (c *Client) NodeUsages(ctx context.Context, filter *muster.NodeFilter) iter.Seq2[*NodeUsage, error] {
	return all(func(page muster.PageInput) ([]*NodeUsage, PageInfo, error) {
		answer, err := repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*operations.ListNodeUsagesResponse, error) {
			return operations.ListNodeUsages(ctx, api, filter, page.First, page.After)
		})
		if err != nil || answer.Nodes == nil {
			return nil, PageInfo{}, err
		}
		usages := make([]*NodeUsage, len(answer.Nodes.Edges))
		for i, edge := range answer.Nodes.Edges {
			usages[i] = edge.Node
		}
		return usages, answer.Nodes.PageInfo, nil
	})
}
