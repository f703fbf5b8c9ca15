package agent

import (
	"context"
	"log/slog"
	"time"

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

// complaint logs what does not work, each try of it, and when it works again.
type complaint struct {
	*slog.Logger
	text string
	last string // what was wrong; empty: nothing
}

func (a *Agent) complaint(text string) *complaint {
	return &complaint{Logger: a.o.Logger.With("node", a.o.ID), text: text}
}

// log warns of an error once, as long as nothing else is wrong: a server can be down for days.
func (c *complaint) log(ctx context.Context, err error, pause time.Duration) {
	level := slog.LevelWarn
	if err.Error() == c.last {
		level = slog.LevelDebug
	}
	c.last = err.Error()
	c.Log(ctx, level, c.text, "err", err, "again_in", pause)
}

func (c *complaint) end() {
	if c.last != "" {
		c.Info("the registry answers again", "over", c.text)
	}
	c.last = ""
}

// whenever asks the registry once each time that it is due, and again until that
// succeeds. It returns an error when the agent must not go on.
func (a *Agent) whenever(ctx context.Context, due signal, failure string, ask func(context.Context) error) error {
	p, unknown, away := a.newPauses(), 0, a.complaint(failure)
	for due.wait(ctx) {
		err := ask(ctx)
		switch {
		case err == nil:
			p.reset()
			unknown = 0
			away.end()
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
		away.log(ctx, err, pause)
		if !sleep(ctx, pause, nil) {
			return nil
		}
		due.raise()
	}
	return nil
}
