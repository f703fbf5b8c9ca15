package client

import (
	"context"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// Registration is the answer to an agent that registered: its node, the server,
// and which of the reported machines are terminated.
type Registration = operations.Registration

// The agent's calls are tried once each: its loops try again by themselves, with
// what is true by then.

// RegisterNode announces a node with its whole inventory.
func (c *Client) RegisterNode(ctx context.Context, input muster.RegisterNodeInput) (*Registration, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*Registration, error) {
		answer, err := operations.RegisterNode(ctx, api, input)
		if err != nil {
			return nil, err
		}
		return answer.RegisterNode, nil
	})
}

// Heartbeat says that a node lives. UNKNOWN_NODE: register again.
func (c *Client) Heartbeat(ctx context.Context, input muster.HeartbeatInput) (*muster.Beat, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*muster.Beat, error) {
		answer, err := operations.Heartbeat(ctx, api, input)
		if err != nil {
			return nil, err
		}
		return answer.Heartbeat, nil
	})
}

// Assignments returns what the registry wants of a node, in full.
func (c *Client) Assignments(ctx context.Context, uid muster.NodeUID, incarnation int64) (*muster.Assignments, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*muster.Assignments, error) {
		answer, err := operations.ReadAssignments(ctx, api, string(uid), incarnation)
		if err != nil {
			return nil, err
		}
		return answer.Assignments, nil
	})
}

// Peers returns the other nodes and the networks of their instances.
func (c *Client) Peers(ctx context.Context, uid muster.NodeUID, incarnation int64) (*muster.Peers, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*muster.Peers, error) {
		answer, err := operations.ReadPeers(ctx, api, string(uid), incarnation)
		if err != nil {
			return nil, err
		}
		return answer.Peers, nil
	})
}

// ReportInstances reports a node's whole inventory. It returns which of the
// reported machines the registry knows to be terminated.
func (c *Client) ReportInstances(ctx context.Context, input muster.ReportInstancesInput) (remove []string, err error) {
	if input.Instances == nil {
		input.Instances = []muster.InstanceReportInput{} // the schema takes no null
	}
	answer, err := once(ctx, c, func(ctx context.Context, api graphql.Client) (*operations.ReportAnswer, error) {
		answer, err := operations.ReportInstances(ctx, api, input)
		if err != nil {
			return nil, err
		}
		return answer.ReportInstances, nil
	})
	if err != nil {
		return nil, err
	}
	return answer.Remove, nil
}
