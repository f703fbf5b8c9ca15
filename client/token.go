package client

import (
	"context"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about join tokens. Text is what to present: it is shown once.
type (
	JoinToken    = operations.JoinToken
	TokenUse     = operations.TokenUse
	CreatedToken = operations.CreatedToken
)

// JoinTokens returns the join tokens that have not expired, in order of their number.
func (c *Client) JoinTokens(ctx context.Context) ([]JoinToken, error) {
	answer, err := repeat(ctx, c, operations.ListJoinTokens)
	if err != nil {
		return nil, err
	}
	return answer.JoinTokens, nil
}

// CreateJoinToken makes a token that lets machines join as nodes.
func (c *Client) CreateJoinToken(ctx context.Context, input muster.CreateJoinTokenInput) (*CreatedToken, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*CreatedToken, error) {
		answer, err := operations.CreateJoinToken(ctx, api, input)
		if err != nil {
			return nil, err
		}
		return answer.CreateJoinToken, nil
	})
}

// RevokeJoinToken ends a token and returns it as it was; nodes that joined by it stay.
func (c *Client) RevokeJoinToken(ctx context.Context, id muster.TokenID) (*JoinToken, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*JoinToken, error) {
		answer, err := operations.RevokeJoinToken(ctx, api, string(id))
		if err != nil || answer.RevokeJoinToken == nil {
			return nil, err
		}
		return answer.RevokeJoinToken.JoinToken, nil
	})
}
