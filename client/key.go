package client

import (
	"context"
	"iter"
	"time"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about access keys. Text is what to present: it is shown
// once, and whoever has it has the key.
type (
	AccessKey           = operations.AccessKey
	AccessKeyEdge       = operations.AccessKeyEdge
	AccessKeyConnection = operations.AccessKeyConnection
	CreatedKey          = operations.CreatedKey
	RotatedKey          = operations.RotatedKey
	SignIn              = operations.SignIn
)

// Whoami returns the key that this client presents; nil where the server asks nobody
// for one.
func (c *Client) Whoami(ctx context.Context) (*AccessKey, error) {
	answer, err := repeat(ctx, c, operations.Whoami)
	if err != nil {
		return nil, err
	}
	return answer.Whoami, nil
}

// AccessKeys returns a page of the access keys in order of their number.
func (c *Client) AccessKeys(ctx context.Context, page muster.PageInput) (*AccessKeyConnection, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*AccessKeyConnection, error) {
		answer, err := operations.ListAccessKeys(ctx, api, page.First, page.After)
		if err != nil {
			return nil, err
		}
		return answer.AccessKeys, nil
	})
}

// AllAccessKeys goes through the access keys, page by page. It ends with the first error.
func (c *Client) AllAccessKeys(ctx context.Context) iter.Seq2[*AccessKey, error] {
	return all(func(page muster.PageInput) ([]*AccessKey, PageInfo, error) {
		answer, err := c.AccessKeys(ctx, page)
		if err != nil {
			return nil, PageInfo{}, err
		}
		keys := make([]*AccessKey, len(answer.Edges))
		for i, edge := range answer.Edges {
			keys[i] = edge.Node
		}
		return keys, answer.PageInfo, nil
	})
}

// CreateAccessKey makes a key. It is tried once: another try with the same requestId
// would give the key without its text. After UNAVAILABLE, look for it in the list.
func (c *Client) CreateAccessKey(ctx context.Context, input muster.CreateAccessKeyInput) (*CreatedKey, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*CreatedKey, error) {
		answer, err := operations.CreateAccessKey(ctx, api, input)
		if err != nil {
			return nil, err
		}
		return answer.CreateAccessKey, nil
	})
}

// RevokeAccessKey ends a key, and every stream that it opened, at once and for good.
func (c *Client) RevokeAccessKey(ctx context.Context, id muster.KeyID) (*AccessKey, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*AccessKey, error) {
		answer, err := operations.RevokeAccessKey(ctx, api, string(id))
		if err != nil || answer.RevokeAccessKey == nil {
			return nil, err
		}
		return answer.RevokeAccessKey.AccessKey, nil
	})
}

// RotateAccessKey gives a key a new secret; the one that it has stays good for the
// overlap.
func (c *Client) RotateAccessKey(ctx context.Context, id muster.KeyID, overlap time.Duration) (*RotatedKey, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*RotatedKey, error) {
		answer, err := operations.RotateAccessKey(ctx, api, string(id), &overlap)
		if err != nil {
			return nil, err
		}
		return answer.RotateAccessKey, nil
	})
}

// CreateSignIn makes a code that signs a browser in once, within the time to live, and
// returns the path to open on the server.
func (c *Client) CreateSignIn(ctx context.Context, ttl time.Duration) (*SignIn, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*SignIn, error) {
		answer, err := operations.CreateSignIn(ctx, api, ttl)
		if err != nil {
			return nil, err
		}
		return answer.CreateSignIn, nil
	})
}
