package client

import (
	"context"
	"iter"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about nodes.
type (
	Node           = operations.Node
	Drain          = operations.NodeDrain
	NodeEdge       = operations.NodeEdge
	NodeConnection = operations.NodeConnection
	PageInfo       = operations.PageInfo
)

// Node returns a node by its id or uid; NOT_FOUND when there is none.
func (c *Client) Node(ctx context.Context, id string) (*Node, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*Node, error) {
		answer, err := operations.NodeByID(ctx, api, id)
		if err != nil {
			return nil, err
		}
		if answer.Node == nil {
			return nil, missing("there is no node %q: see the list of nodes", id)
		}
		return answer.Node, nil
	})
}

// Nodes returns a page of nodes in order of their id; a nil filter selects all.
func (c *Client) Nodes(ctx context.Context, filter *muster.NodeFilter, page muster.PageInput) (*NodeConnection, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*NodeConnection, error) {
		answer, err := operations.ListNodes(ctx, api, filter, page.First, page.After)
		if err != nil {
			return nil, err
		}
		return answer.Nodes, nil
	})
}

// AllNodes goes through every node that the filter selects, page by page. It
// ends with the first error.
func (c *Client) AllNodes(ctx context.Context, filter *muster.NodeFilter) iter.Seq2[*Node, error] {
	return all(func(page muster.PageInput) ([]*Node, PageInfo, error) {
		answer, err := c.Nodes(ctx, filter, page)
		if err != nil {
			return nil, PageInfo{}, err
		}
		nodes := make([]*Node, len(answer.Edges))
		for i, edge := range answer.Edges {
			nodes[i] = edge.Node
		}
		return nodes, answer.PageInfo, nil
	})
}

// all goes through the pages that read returns.
func all[T any](read func(muster.PageInput) ([]*T, PageInfo, error)) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		first := muster.MaxPage
		page := muster.PageInput{First: &first}
		for {
			objects, info, err := read(page)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, object := range objects {
				if !yield(object, nil) {
					return
				}
			}
			if !info.HasNextPage || info.EndCursor == nil {
				return
			}
			page.After = info.EndCursor
		}
	}
}

// CordonNode keeps new instances off a node (id or uid); reason is for people.
func (c *Client) CordonNode(ctx context.Context, id, reason string) (*Node, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Node, error) {
		answer, err := operations.CordonNode(ctx, api, id, reason)
		if err != nil || answer.CordonNode == nil {
			return nil, err
		}
		return answer.CordonNode.Node, nil
	})
}

// DrainNode cordons a node and lets its instances end, see the schema; what
// still runs at the deadline is stopped. UncordonNode cancels it.
func (c *Client) DrainNode(ctx context.Context, input muster.DrainNodeInput) (*Node, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Node, error) {
		answer, err := operations.DrainNode(ctx, api, input)
		if err != nil || answer.DrainNode == nil {
			return nil, err
		}
		return answer.DrainNode.Node, nil
	})
}

// LabelNode edits the labels of a node (id or uid).
func (c *Client) LabelNode(ctx context.Context, input muster.LabelInput) (*Node, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Node, error) {
		answer, err := operations.LabelNode(ctx, api, input)
		if err != nil || answer.LabelNode == nil {
			return nil, err
		}
		return answer.LabelNode.Node, nil
	})
}

// UncordonNode lets new instances onto a node (id or uid) again.
func (c *Client) UncordonNode(ctx context.Context, id string) (*Node, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Node, error) {
		answer, err := operations.UncordonNode(ctx, api, id)
		if err != nil || answer.UncordonNode == nil {
			return nil, err
		}
		return answer.UncordonNode.Node, nil
	})
}

// RemoveNode takes a node (id or uid) out of the registry and returns it as it was.
func (c *Client) RemoveNode(ctx context.Context, id string) (*Node, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Node, error) {
		answer, err := operations.RemoveNode(ctx, api, id)
		if err != nil || answer.RemoveNode == nil {
			return nil, err
		}
		return answer.RemoveNode.Node, nil
	})
}

// ForgetNode clears every trace of a node that is gone or was removed (uid, or its id)
// and returns it as it was; nil when there were only keys of it. NOT_FOUND: there is
// nothing of it; CONFLICT: it still beats.
func (c *Client) ForgetNode(ctx context.Context, id string) (*Node, error) {
	type forgotten = operations.ForgetNodeForgetNodeForgetNodePayload
	answer, err := once(ctx, c, func(ctx context.Context, api graphql.Client) (*forgotten, error) {
		answer, err := operations.ForgetNode(ctx, api, id)
		if err != nil {
			return nil, err
		}
		return answer.ForgetNode, nil
	})
	if err != nil {
		return nil, err
	}
	return answer.Node, nil
}
