package client

import (
	"context"
	"crypto/rand"
	"iter"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about instances.
type (
	Instance           = operations.Instance
	NodeRef            = operations.NodeRef
	InstanceEdge       = operations.InstanceEdge
	InstanceConnection = operations.InstanceConnection
	InstanceTypeInfo   = operations.InstanceTypeInfo
)

// Instance returns an instance by its id; NOT_FOUND when there is none.
func (c *Client) Instance(ctx context.Context, id muster.InstanceID) (*Instance, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*Instance, error) {
		answer, err := operations.InstanceByID(ctx, api, string(id))
		if err != nil {
			return nil, err
		}
		if answer.Instance == nil {
			return nil, missing("there is no instance %q: see the list of instances", id)
		}
		return answer.Instance, nil
	})
}

// Instances returns a page of instances in order of their number; a nil filter
// selects all.
func (c *Client) Instances(ctx context.Context, filter *muster.InstanceFilter, page muster.PageInput) (*InstanceConnection, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*InstanceConnection, error) {
		answer, err := operations.ListInstances(ctx, api, filter, page.First, page.After)
		if err != nil {
			return nil, err
		}
		return answer.Instances, nil
	})
}

// AllInstances goes through every instance that the filter selects, page by
// page. It ends with the first error.
func (c *Client) AllInstances(ctx context.Context, filter *muster.InstanceFilter) iter.Seq2[*Instance, error] {
	return all(func(page muster.PageInput) ([]*Instance, PageInfo, error) {
		answer, err := c.Instances(ctx, filter, page)
		if err != nil {
			return nil, PageInfo{}, err
		}
		instances := make([]*Instance, len(answer.Edges))
		for i, edge := range answer.Edges {
			instances[i] = edge.Node
		}
		return instances, answer.PageInfo, nil
	})
}

// InstanceTypes returns the sizes that an instance can have, smallest first.
func (c *Client) InstanceTypes(ctx context.Context) ([]InstanceTypeInfo, error) {
	answer, err := repeat(ctx, c, operations.ListInstanceTypes)
	if err != nil {
		return nil, err
	}
	return answer.InstanceTypes, nil
}

// LaunchInstance places a new instance and returns at once, while it is being
// provisioned. Without a RequestID it gets one, so that repeating the call is
// safe, and it is repeated while the server is UNAVAILABLE.
func (c *Client) LaunchInstance(ctx context.Context, input muster.LaunchInstanceInput) (*Instance, error) {
	if input.RequestID == "" {
		input.RequestID = rand.Text()
	}
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*Instance, error) {
		answer, err := operations.LaunchInstance(ctx, api, input)
		if err != nil || answer.LaunchInstance == nil {
			return nil, err
		}
		return answer.LaunchInstance.Instance, nil
	})
}

// StartInstance starts an instance that is STOPPED or FAILED.
func (c *Client) StartInstance(ctx context.Context, id muster.InstanceID) (*Instance, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Instance, error) {
		answer, err := operations.StartInstance(ctx, api, string(id))
		if err != nil || answer.StartInstance == nil {
			return nil, err
		}
		return answer.StartInstance.Instance, nil
	})
}

// StopInstance stops an instance, which keeps its id and its disk.
func (c *Client) StopInstance(ctx context.Context, id muster.InstanceID) (*Instance, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Instance, error) {
		answer, err := operations.StopInstance(ctx, api, string(id))
		if err != nil || answer.StopInstance == nil {
			return nil, err
		}
		return answer.StopInstance.Instance, nil
	})
}

// RestartInstance stops an instance and starts it again with a new generation.
func (c *Client) RestartInstance(ctx context.Context, id muster.InstanceID) (*Instance, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Instance, error) {
		answer, err := operations.RestartInstance(ctx, api, string(id))
		if err != nil || answer.RestartInstance == nil {
			return nil, err
		}
		return answer.RestartInstance.Instance, nil
	})
}

// TerminateInstance ends an instance for good.
func (c *Client) TerminateInstance(ctx context.Context, id muster.InstanceID) (*Instance, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Instance, error) {
		answer, err := operations.TerminateInstance(ctx, api, string(id))
		if err != nil || answer.TerminateInstance == nil {
			return nil, err
		}
		return answer.TerminateInstance.Instance, nil
	})
}

// AdoptInstance takes an UNKNOWN instance in, as it was found.
func (c *Client) AdoptInstance(ctx context.Context, id muster.InstanceID) (*Instance, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Instance, error) {
		answer, err := operations.AdoptInstance(ctx, api, string(id))
		if err != nil || answer.AdoptInstance == nil {
			return nil, err
		}
		return answer.AdoptInstance.Instance, nil
	})
}

// LabelInstance edits an instance's labels.
func (c *Client) LabelInstance(ctx context.Context, input muster.LabelInput) (*Instance, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Instance, error) {
		answer, err := operations.LabelInstance(ctx, api, input)
		if err != nil || answer.LabelInstance == nil {
			return nil, err
		}
		return answer.LabelInstance.Instance, nil
	})
}
