package graph

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
)

func (r *queryResolver) Instance(ctx context.Context, id string) (*muster.Instance, error) {
	if err := muster.CheckID("id", id); err != nil {
		return nil, err
	}
	return r.registry.Seen(ctx).Instance(muster.InstanceID(id)), nil
}

func (r *queryResolver) Instances(ctx context.Context, filter *muster.InstanceFilter, first *int, after *string) (*muster.InstanceConnection, error) {
	return r.registry.Seen(ctx).Instances(filter, muster.PageInput{First: first, After: after})
}

func (r *queryResolver) InstanceTypes(context.Context) ([]*muster.InstanceTypeInfo, error) {
	return muster.InstanceTypes(), nil
}

func (r *mutationResolver) ReportInstances(ctx context.Context, input muster.ReportInstancesInput) (*generated.ReportInstancesPayload, error) {
	remove, revision, err := r.registry.ReportInstances(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.ReportInstancesPayload{Remove: remove, Revision: revision}, nil
}

func (r *mutationResolver) LaunchInstance(ctx context.Context, input muster.LaunchInstanceInput) (*generated.LaunchInstancePayload, error) {
	i, revision, err := r.registry.LaunchInstance(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.LaunchInstancePayload{Instance: i, Revision: revision}, nil
}

func (r *mutationResolver) StartInstance(ctx context.Context, input generated.StartInstanceInput) (*generated.StartInstancePayload, error) {
	i, revision, err := r.registry.StartInstance(ctx, muster.InstanceID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.StartInstancePayload{Instance: i, Revision: revision}, nil
}

func (r *mutationResolver) StopInstance(ctx context.Context, input generated.StopInstanceInput) (*generated.StopInstancePayload, error) {
	i, revision, err := r.registry.StopInstance(ctx, muster.InstanceID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.StopInstancePayload{Instance: i, Revision: revision}, nil
}

func (r *mutationResolver) RestartInstance(ctx context.Context, input generated.RestartInstanceInput) (*generated.RestartInstancePayload, error) {
	i, revision, err := r.registry.RestartInstance(ctx, muster.InstanceID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.RestartInstancePayload{Instance: i, Revision: revision}, nil
}

func (r *mutationResolver) AdoptInstance(ctx context.Context, input generated.AdoptInstanceInput) (*generated.AdoptInstancePayload, error) {
	i, revision, err := r.registry.AdoptInstance(ctx, muster.InstanceID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.AdoptInstancePayload{Instance: i, Revision: revision}, nil
}

func (r *mutationResolver) LabelInstance(ctx context.Context, input muster.LabelInput) (*generated.LabelInstancePayload, error) {
	i, revision, err := r.registry.LabelInstance(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.LabelInstancePayload{Instance: i, Revision: revision}, nil
}

func (r *mutationResolver) TerminateInstance(ctx context.Context, input generated.TerminateInstanceInput) (*generated.TerminateInstancePayload, error) {
	i, revision, err := r.registry.TerminateInstance(ctx, muster.InstanceID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.TerminateInstancePayload{Instance: i, Revision: revision}, nil
}

func (r *instanceResolver) UnhealthyBecause(_ context.Context, i *muster.Instance) (*muster.Evidence, error) {
	return r.registry.InstanceEvidence(i), nil
}

func (r *instanceResolver) PendingBecause(ctx context.Context, i *muster.Instance, first *int) ([]*muster.Refusal, error) {
	return r.registry.Seen(ctx).PendingBecause(i, first)
}

func (r *instanceResolver) Usage(_ context.Context, i *muster.Instance) (*muster.Usage, error) {
	return r.registry.InstanceUsage(i), nil
}

// Node is null while the instance waits, and when its node is gone.
func (r *instanceResolver) Node(ctx context.Context, i *muster.Instance) (*muster.Node, error) {
	if i.NodeUID == "" {
		return nil, nil
	}
	return r.registry.Seen(ctx).Node(string(i.NodeUID)), nil
}

func (r *instanceResolver) Changes(ctx context.Context, i *muster.Instance, first *int) ([]*muster.Change, error) {
	return lastChanges(ctx, string(i.ID), first)
}
