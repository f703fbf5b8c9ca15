package client

import (
	"context"
	"crypto/rand"
	"iter"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about services.
type (
	Service           = operations.Service
	ServiceNode       = operations.ServiceNode
	ServiceEdge       = operations.ServiceEdge
	ServiceConnection = operations.ServiceConnection
)

// Service returns a service by its id; NOT_FOUND when there is none.
func (c *Client) Service(ctx context.Context, id muster.ServiceID) (*Service, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*Service, error) {
		answer, err := operations.ServiceByID(ctx, api, string(id))
		if err != nil {
			return nil, err
		}
		if answer.Service == nil {
			return nil, missing("there is no service %q: see the list of services", id)
		}
		return answer.Service, nil
	})
}

// Services returns a page of services in order of their number; a nil filter selects
// all but removed ones.
func (c *Client) Services(ctx context.Context, filter *muster.ServiceFilter, page muster.PageInput) (*ServiceConnection, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*ServiceConnection, error) {
		answer, err := operations.ListServices(ctx, api, filter, page.First, page.After)
		if err != nil {
			return nil, err
		}
		return answer.Services, nil
	})
}

// AllServices goes through every service that the filter selects, page by page. It
// ends with the first error.
func (c *Client) AllServices(ctx context.Context, filter *muster.ServiceFilter) iter.Seq2[*Service, error] {
	return all(func(page muster.PageInput) ([]*Service, PageInfo, error) {
		answer, err := c.Services(ctx, filter, page)
		if err != nil {
			return nil, PageInfo{}, err
		}
		services := make([]*Service, len(answer.Edges))
		for i, edge := range answer.Edges {
			services[i] = edge.Node
		}
		return services, answer.PageInfo, nil
	})
}

// DeployService deploys a service and returns at once, while its node does it. Without
// a RequestID it gets one, so that repeating the call is safe, and it is repeated while
// the server is UNAVAILABLE.
func (c *Client) DeployService(ctx context.Context, input muster.DeployServiceInput) (*Service, error) {
	if input.RequestID == "" {
		input.RequestID = rand.Text()
	}
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*Service, error) {
		answer, err := operations.DeployService(ctx, api, input)
		if err != nil || answer.DeployService == nil {
			return nil, err
		}
		return answer.DeployService.Service, nil
	})
}

// RegisterService announces a process that runs already; see DeployService.
func (c *Client) RegisterService(ctx context.Context, input muster.RegisterServiceInput) (*Service, error) {
	if input.RequestID == "" {
		input.RequestID = rand.Text()
	}
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*Service, error) {
		answer, err := operations.RegisterService(ctx, api, input)
		if err != nil || answer.RegisterService == nil {
			return nil, err
		}
		return answer.RegisterService.Service, nil
	})
}

// StartService starts a service that has ended or was stopped.
func (c *Client) StartService(ctx context.Context, id muster.ServiceID) (*Service, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Service, error) {
		answer, err := operations.StartService(ctx, api, string(id))
		if err != nil || answer.StartService == nil {
			return nil, err
		}
		return answer.StartService.Service, nil
	})
}

// StopService stops a service, which keeps its id, its files and its log.
func (c *Client) StopService(ctx context.Context, id muster.ServiceID) (*Service, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Service, error) {
		answer, err := operations.StopService(ctx, api, string(id))
		if err != nil || answer.StopService == nil {
			return nil, err
		}
		return answer.StopService.Service, nil
	})
}

// RestartService stops a service and starts it again with a new generation.
func (c *Client) RestartService(ctx context.Context, id muster.ServiceID) (*Service, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Service, error) {
		answer, err := operations.RestartService(ctx, api, string(id))
		if err != nil || answer.RestartService == nil {
			return nil, err
		}
		return answer.RestartService.Service, nil
	})
}

// RemoveService ends a service for good, and the instance that was launched for it.
func (c *Client) RemoveService(ctx context.Context, id muster.ServiceID) (*Service, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Service, error) {
		answer, err := operations.RemoveService(ctx, api, string(id))
		if err != nil || answer.RemoveService == nil {
			return nil, err
		}
		return answer.RemoveService.Service, nil
	})
}

// ReportCheck says what a TTL check found. UNAVAILABLE: say it again.
func (c *Client) ReportCheck(ctx context.Context, input muster.ReportCheckInput) (*Service, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Service, error) {
		answer, err := operations.ReportCheck(ctx, api, input)
		if err != nil || answer.ReportCheck == nil {
			return nil, err
		}
		return answer.ReportCheck.Service, nil
	})
}
