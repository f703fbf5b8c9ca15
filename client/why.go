package client

import (
	"context"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// PendingBecause returns why no node takes an instance that waits, for the first hundred
// nodes; nil when it does not wait, and NOT_FOUND when there is no such instance.
func (c *Client) PendingBecause(ctx context.Context, id muster.InstanceID) ([]muster.Refusal, error) {
	answer, err := repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*operations.ListRefusalsResponse, error) {
		return operations.ListRefusals(ctx, api, string(id), muster.MaxPage)
	})
	switch {
	case err != nil:
		return nil, err
	case answer.Instance == nil:
		return nil, missing("there is no instance %q: see the list of instances", id)
	}
	return answer.Instance.PendingBecause, nil
}

// NewestChanges returns the newest changes of an instance, a service or a node, newest
// first; none when the registry has none of that id any more, for which see Changes.
func (c *Client) NewestChanges(ctx context.Context, id string, first int) ([]Change, error) {
	answer, err := repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*operations.ListNewestChangesResponse, error) {
		return operations.ListNewestChanges(ctx, api, id, first)
	})
	switch {
	case err != nil:
		return nil, err
	case answer.Instance != nil:
		return answer.Instance.Changes, nil
	case answer.Service != nil:
		return answer.Service.Changes, nil
	case answer.Node != nil:
		return answer.Node.Changes, nil
	}
	return nil, nil
}
