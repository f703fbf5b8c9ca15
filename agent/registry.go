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
	Peers(ctx context.Context, uid muster.NodeUID, incarnation int64) (*muster.Peers, error)
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

// whenever asks the registry once each time that it is due, and again until that
// succeeds. It returns an error when the agent must not go on.
func (a *Agent) whenever(ctx context.Context, due signal, failure string, ask func(context.Context) error) error {
	p, unknown := a.newPauses(), 0
	for due.wait(ctx) {
		err := ask(ctx)
		switch {
		case err == nil:
			p.reset()
			unknown = 0
			continue
		case ctx.Err() != nil:
			return nil
		case final(err):
			return err
		case muster.CodeOf(err) == muster.UnknownNode:
			a.unknown() // and the registration makes it due again
			if unknown++; unknown == 1 {
				continue
			}
		}
		pause := p.next(a.interval())
		a.o.Logger.Warn(failure, "node", a.o.ID, "err", err, "again_in", pause)
		if !sleep(ctx, pause, nil) {
			return nil
		}
		due.raise()
	}
	return nil
}
