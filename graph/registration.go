package graph

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
)

func (r *queryResolver) Registrations(_ context.Context, cluster, protocol, service, address *string, preferred *bool) (*muster.Registrations, error) {
	f := muster.RegistrationFilter{Cluster: value(cluster), Protocol: value(protocol), Service: value(service), Address: value(address)}
	return r.registry.Registrations(f, value(preferred))
}

func (r *subscriptionResolver) RegistrationChanges(ctx context.Context, since *muster.Cursor, initial *bool, filter *muster.RegistrationFilter) (<-chan *muster.Event, error) {
	return r.registry.WatchRegistrations(ctx, value(filter), from(since, initial))
}

func (r *mutationResolver) Register(ctx context.Context, input muster.RegisterInput) (*generated.RegisterPayload, error) {
	e, revision, err := r.registry.Register(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.RegisterPayload{Registration: e, Revision: revision}, nil
}

func (r *mutationResolver) Deregister(ctx context.Context, input muster.DeregisterInput) (*generated.DeregisterPayload, error) {
	e, revision, err := r.registry.Deregister(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.DeregisterPayload{Registration: e, Revision: revision}, nil
}

func (r *mutationResolver) VerifyFeed(ctx context.Context, input generated.VerifyFeedInput) (*generated.VerifyFeedPayload, error) {
	found, err := r.registry.VerifyFeed(ctx, value(input.Repair))
	if err != nil {
		return nil, err
	}
	out := &generated.VerifyFeedPayload{Findings: make([]*muster.FeedFinding, len(found))}
	for i := range found {
		out.Findings[i] = &found[i]
	}
	return out, nil
}

// TTL is empty where the entry has none of its own.
func (r *registrationResolver) TTL(_ context.Context, e *muster.Entry) (string, error) {
	if e.TTL == nil {
		return "", nil
	}
	return muster.FormatRegistrationTTL(*e.TTL), nil
}

func (r *registrationResolver) Stale(_ context.Context, e *muster.Entry) (bool, error) {
	return e.Status == muster.EntryStale, nil
}

func (r *serviceResolver) NotRegisteredBecause(_ context.Context, s *muster.Service) (string, error) {
	return r.registry.NotRegistered(s), nil
}

func (r *serviceResolver) RegistrationProblems(_ context.Context, s *muster.Service) ([]string, error) {
	return r.registry.EntryProblems(s), nil
}
