package registry

import (
	"context"
	"errors"

	"github.com/muster-cloud/muster"
)

// Exec asks the agent of an instance's node to run a command in it and to connect its
// streams to a session, whose id in the request is the caller's. It returns the node once
// the agent has said that it will. It is in the audit, with its command.
// CONFLICT: the instance does not run; UNAVAILABLE: its node is away.
func (r *Registry) Exec(ctx context.Context, id muster.InstanceID, request muster.ExecRequest) (muster.NodeUID, error) {
	if err := muster.CheckID("id", string(id)); err != nil {
		return "", err
	}
	if err := request.Validate(); err != nil {
		return "", err
	}
	v := r.Seen(ctx).view()
	i := v.Instance(id)
	switch {
	case i == nil:
		return "", noInstance(id)
	case i.Status == muster.Stopped, i.Status == muster.Failed:
		return "", muster.Errorf(muster.Conflict, "instance %s is %s: start it first, with muster instance start %s", id, i.Status, id)
	case i.Status != muster.Running:
		return "", muster.Errorf(muster.Conflict, "instance %s is %s: a command can only run in one that is RUNNING", id, i.Status)
	}
	request.Machine, request.Env = i.Machine, orEmpty(request.Env)
	p := muster.PrincipalOf(ctx)
	_, err := r.commits.submit(ctx, p.Actor(), r.admitting(p, func(_ View, w *Writes) error {
		e := r.entry(p)
		e.Target, e.Outcome, e.Reason = string(id), muster.AuditDone, muster.Printable(muster.Redacted(request.Line()), muster.MaxReasonBytes)
		w.Audit(e)
		return nil
	}))
	if err != nil {
		return "", err
	}
	timed, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	answer, err := r.desk.ask(timed, i.NodeUID, muster.AgentRequest{Exec: &request})
	switch {
	case errors.Is(err, context.DeadlineExceeded): // the caller's as well: an agent that hangs outlasts either
		return "", muster.Errorf(muster.Unavailable, "the agent of %s's node does not answer: see muster why %s, and try again when it is back", id, id)
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil && answer == nil:
		return "", muster.Errorf(muster.Unavailable, "the agent of %s's node is not connected: see muster why %s, and try again when it is back", id, id)
	case err != nil:
		return "", err
	case answer.Code != nil:
		return "", muster.Errorf(*answer.Code, "the agent of %s's node did not run it: %s", id, answer.Message)
	}
	return i.NodeUID, nil
}
