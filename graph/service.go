package graph

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
)

func (r *queryResolver) Service(ctx context.Context, id string) (*muster.Service, error) {
	if err := muster.CheckID("id", id); err != nil {
		return nil, err
	}
	return r.registry.Seen(ctx).Service(muster.ServiceID(id)), nil
}

func (r *queryResolver) Services(ctx context.Context, filter *muster.ServiceFilter, first *int, after *string) (*muster.ServiceConnection, error) {
	return r.registry.Seen(ctx).Services(filter, muster.PageInput{First: first, After: after})
}

func (r *subscriptionResolver) ServiceChanges(ctx context.Context, since *muster.Cursor, initial *bool, filter *muster.ServiceFilter) (<-chan *muster.Event, error) {
	return r.registry.WatchServices(ctx, filter, from(since, initial))
}

// asked refuses an interval that somebody wrote as 0s: one that is left out has the schema's default by now.
func asked(checks []muster.Check) error {
	for _, c := range checks {
		if c.Interval == 0 {
			return muster.InvalidField("checks.interval", "0s is not between %s and %s; leave it out for %s", muster.MinCheckInterval, muster.MaxCheckInterval, muster.DefaultCheckInterval)
		}
	}
	return nil
}

func (r *mutationResolver) DeployService(ctx context.Context, input muster.DeployServiceInput) (*generated.DeployServicePayload, error) {
	if err := asked(input.Checks); err != nil {
		return nil, err
	}
	s, revision, err := r.registry.DeployService(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.DeployServicePayload{Service: s, Revision: revision}, nil
}

func (r *mutationResolver) RegisterService(ctx context.Context, input muster.RegisterServiceInput) (*generated.RegisterServicePayload, error) {
	if err := asked(input.Checks); err != nil {
		return nil, err
	}
	s, revision, err := r.registry.RegisterService(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.RegisterServicePayload{Service: s, Revision: revision}, nil
}

func (r *mutationResolver) StartService(ctx context.Context, input generated.StartServiceInput) (*generated.StartServicePayload, error) {
	s, revision, err := r.registry.StartService(ctx, muster.ServiceID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.StartServicePayload{Service: s, Revision: revision}, nil
}

func (r *mutationResolver) StopService(ctx context.Context, input generated.StopServiceInput) (*generated.StopServicePayload, error) {
	s, revision, err := r.registry.StopService(ctx, muster.ServiceID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.StopServicePayload{Service: s, Revision: revision}, nil
}

func (r *mutationResolver) RestartService(ctx context.Context, input generated.RestartServiceInput) (*generated.RestartServicePayload, error) {
	s, revision, err := r.registry.RestartService(ctx, muster.ServiceID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.RestartServicePayload{Service: s, Revision: revision}, nil
}

func (r *mutationResolver) RemoveService(ctx context.Context, input generated.RemoveServiceInput) (*generated.RemoveServicePayload, error) {
	s, revision, err := r.registry.RemoveService(ctx, muster.ServiceID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.RemoveServicePayload{Service: s, Revision: revision}, nil
}

func (r *mutationResolver) ReportCheck(ctx context.Context, input muster.ReportCheckInput) (*generated.ReportCheckPayload, error) {
	s, err := r.registry.ReportCheck(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.ReportCheckPayload{Service: s}, nil
}

// Instance is null once it was terminated a while ago.
func (r *serviceResolver) Instance(ctx context.Context, s *muster.Service) (*muster.Instance, error) {
	return r.registry.Seen(ctx).Instance(s.InstanceID), nil
}

// Node is null while the instance waits, and when its node is gone.
func (r *serviceResolver) Node(ctx context.Context, s *muster.Service) (*muster.Node, error) {
	i := r.registry.Seen(ctx).Instance(s.InstanceID)
	if i == nil || i.NodeUID == "" {
		return nil, nil
	}
	return r.registry.Seen(ctx).Node(string(i.NodeUID)), nil
}

func (r *serviceResolver) CheckResults(_ context.Context, s *muster.Service) ([]*muster.CheckResult, error) {
	found := r.registry.CheckResults(s)
	out := make([]*muster.CheckResult, len(found))
	for i := range found {
		out[i] = &found[i]
	}
	return out, nil
}

func (r *serviceResolver) Health(_ context.Context, s *muster.Service) (muster.ServiceHealth, error) {
	return r.registry.ServiceHealth(s), nil
}

func (r *serviceResolver) UnhealthyBecause(_ context.Context, s *muster.Service) (*muster.Evidence, error) {
	return r.registry.ServiceEvidence(s), nil
}

func (r *serviceResolver) Changes(ctx context.Context, s *muster.Service, first *int) ([]*muster.Change, error) {
	return lastChanges(ctx, string(s.ID), first)
}
