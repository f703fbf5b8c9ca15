package agent

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// Registry is what an agent asks of a registry; *client.Client is one.
type Registry interface {
	RegisterNode(ctx context.Context, input muster.RegisterNodeInput) (*client.Registration, error)
	Heartbeat(ctx context.Context, input muster.HeartbeatInput) (*muster.Beat, error)
	Assignments(ctx context.Context, uid muster.NodeUID, incarnation int64) (*muster.Assignments, error)
	ReportInstances(ctx context.Context, input muster.ReportInstancesInput) (remove []string, err error)
}

// final reports whether an error ends the agent: it must not register again by
// itself, or it never will be let in.
func final(err error) bool {
	switch muster.CodeOf(err) {
	case muster.Superseded, muster.DuplicateIdentity, muster.Forbidden:
		return true
	}
	return false
}

// hopeless reports whether a first registration that failed so will go on
// failing until somebody changes the agent's settings.
func hopeless(err error) bool {
	switch muster.CodeOf(err) {
	case muster.Invalid, muster.AlreadyExists, muster.Unauthenticated:
		return true
	}
	return final(err)
}
