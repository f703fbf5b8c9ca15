package client

import (
	"context"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about the discovery feed.
type (
	Entry   = operations.Entry
	Entries = operations.Entries
)

// Registrations looks entries of the discovery feed up; an empty field of the filter, or
// *, is any. With preferred, only those of the best priority level.
func (c *Client) Registrations(ctx context.Context, f muster.RegistrationFilter, preferred bool) (*Entries, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*Entries, error) {
		answer, err := operations.LookUpRegistrations(ctx, api, &f.Cluster, &f.Protocol, &f.Service, &f.Address, &preferred)
		if err != nil {
			return nil, err
		}
		return answer.Registrations, nil
	})
}

// Register enters an entry by hand, or changes one; it is repeated while the server is
// UNAVAILABLE, for the same again changes nothing.
func (c *Client) Register(ctx context.Context, input muster.RegisterInput) (*Entry, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*Entry, error) {
		answer, err := operations.Register(ctx, api, input)
		if err != nil || answer.Register == nil {
			return nil, err
		}
		return answer.Register.Registration, nil
	})
}

// Deregister takes an entry out that was registered by hand.
func (c *Client) Deregister(ctx context.Context, input muster.DeregisterInput) (*Entry, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Entry, error) {
		answer, err := operations.Deregister(ctx, api, input)
		if err != nil || answer.Deregister == nil {
			return nil, err
		}
		return answer.Deregister.Registration, nil
	})
}

// VerifyFeed compares what the cluster should have in the discovery feed with what is
// there, and with repair puts it right.
func (c *Client) VerifyFeed(ctx context.Context, repair bool) ([]muster.FeedFinding, error) {
	answer, err := once(ctx, c, func(ctx context.Context, api graphql.Client) (*operations.VerifyFeedVerifyFeedVerifyFeedPayload, error) {
		answer, err := operations.VerifyFeed(ctx, api, &repair)
		if err != nil {
			return nil, err
		}
		return answer.VerifyFeed, nil
	})
	if err != nil {
		return nil, err
	}
	return answer.Findings, nil
}
