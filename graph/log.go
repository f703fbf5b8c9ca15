package graph

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
	"github.com/muster-cloud/muster/graph/transport"
)

func (r *subscriptionResolver) InstanceLogs(ctx context.Context, id string, after *string, tail *int, follow *bool) (<-chan *muster.LogPiece, error) {
	in := muster.InstanceLogsInput{ID: muster.InstanceID(id), After: after, Tail: tail, Follow: value(follow)}
	return transport.Produce(ctx, func(ctx context.Context, yield func(*muster.LogPiece) error) error {
		return r.registry.InstanceLogs(ctx, in, yield)
	}), nil
}

func (r *subscriptionResolver) ServiceLogs(ctx context.Context, id string, after *string, tail *int, follow *bool) (<-chan *muster.LogPiece, error) {
	in := muster.InstanceLogsInput{After: after, Tail: tail, Follow: value(follow)}
	return transport.Produce(ctx, func(ctx context.Context, yield func(*muster.LogPiece) error) error {
		return r.registry.ServiceLogs(ctx, muster.ServiceID(id), in, yield)
	}), nil
}

func (r *subscriptionResolver) AgentRequests(ctx context.Context, uid string, incarnation int64) (<-chan *muster.AgentRequest, error) {
	return transport.Produce(ctx, func(ctx context.Context, yield func(*muster.AgentRequest) error) error {
		return r.registry.AgentRequests(ctx, muster.NodeUID(uid), incarnation, yield)
	}), nil
}

func (r *mutationResolver) AnswerAgentRequest(ctx context.Context, input muster.AgentAnswerInput) (*generated.AnswerAgentRequestPayload, error) {
	wanted, err := r.registry.AnswerAgentRequest(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.AnswerAgentRequestPayload{Wanted: wanted}, nil
}
