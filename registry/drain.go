package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-cloud/muster"
)

// DrainNode cordons a node and lets its instances end; those that still run at
// the deadline are stopped. Its progress is changes of the node: draining, the
// deadline has passed, drained. UncordonNode cancels it, and starts nothing again.
// Draining a node that is being drained moves the deadline.
func (r *Registry) DrainNode(ctx context.Context, in muster.DrainNodeInput) (*muster.Node, int64, error) {
	if err := muster.CheckText("reason", in.Reason, muster.MaxReasonBytes); err != nil {
		return nil, 0, err
	}
	if in.Deadline != nil && *in.Deadline < 0 {
		return nil, 0, muster.InvalidField("deadline", "%s is in the past; give a span such as 10m, or 0s to stop everything now", *in.Deadline)
	}
	return r.changeNode(ctx, in.ID, func(_ View, w *Writes, n *muster.Node) (*muster.Node, error) {
		now := stamp(r.opts.Now())
		after := n.Clone()
		after.Schedulable, after.Drain = false, &muster.Drain{Since: now}
		if n.Drain != nil {
			after.Drain.Since = n.Drain.Since
		}
		reason := "draining until nothing runs"
		if in.Deadline != nil {
			deadline := now.Add(*in.Deadline)
			after.Drain.Deadline = &deadline
			reason = "draining until " + deadline.Format(time.RFC3339)
		}
		if in.Reason != "" {
			reason += ": " + in.Reason
		}
		w.Node(after, reason)
		return after, nil
	})
}

// drainStep is a node whose drain goes a step on.
type drainStep struct {
	node *muster.Node
	busy []*muster.Instance // what still runs there
}

// drainSteps returns the drains that have come to an end, or to their deadline.
func (v View) drainSteps(now time.Time) (due []drainStep) {
	for n := range v.LiveNodes() {
		if n.Drain == nil || n.Drain.Done != nil {
			continue
		}
		d := drainStep{node: n}
		for i := range v.InstancesOn(n.UID) {
			if i.Reserved && i.Status != muster.Unknown {
				d.busy = append(d.busy, i)
			}
		}
		late := n.Drain.Deadline != nil && !now.Before(*n.Drain.Deadline) && !n.Drain.Stopping
		if len(d.busy) == 0 || late {
			due = append(due, d)
		}
	}
	return due
}

// drainStep ends a drain, or stops what is left of it at its deadline.
func (r *Registry) drainStep(v View, w *Writes, d drainStep, now time.Time) {
	after := d.node.Clone()
	drain := *d.node.Drain
	after.Drain = &drain
	if len(d.busy) == 0 {
		at := stamp(now)
		drain.Done = &at
		w.Node(after, "drained: nothing runs on it")
		return
	}
	drain.Stopping = true
	w.Node(after, fmt.Sprintf("the drain's deadline has passed: stopping what still runs (%d)", len(d.busy)))
	for _, i := range d.busy {
		if i.Status != muster.Running && i.Status != muster.Provisioning {
			continue // it is ending already
		}
		r.stop(v, w, i, "its node is drained")
	}
}

// drains reports whether others may have looked a service up, so that it goes on for a
// while when it is to end.
func drains(s *muster.Service, i *muster.Instance) bool {
	return s.Status == muster.ServiceRunning && len(s.RegisterWhenStable) > 0 && s.DrainFor > 0 && i != nil && i.Status == muster.Running
}

// drainService is until when a service goes on that is to end, or to start anew; nil: it ends
// at once. An order that follows another one makes that no later.
func drainService(s *muster.Service, i *muster.Instance, now time.Time) *time.Time {
	switch until := ahead(s.DrainUntil, now); {
	case drains(s, i):
		return new(now.Add(s.DrainFor))
	case until == nil && i != nil && len(s.RegisterWhenStable) > 0:
		return ahead(i.DrainUntil, now) // it goes on with its instance
	default:
		return until
	}
}

// drainInstance is until when an instance goes on that is to end, or to start anew: as long
// as the last of its services.
func (r *Registry) drainInstance(v View, i *muster.Instance) *time.Time {
	now := stamp(r.opts.Now())
	var until *time.Time
	for _, s := range v.servicesOf(i.ID) {
		if s.Gone() {
			continue
		}
		if at := drainService(s, i, now); at != nil && (until == nil || at.After(*until)) {
			until = at
		}
	}
	return until
}

// ahead is a time that has not come yet, or nil.
func ahead(t *time.Time, now time.Time) *time.Time {
	if t == nil || !t.After(now) {
		return nil
	}
	return t
}

// draining is a reason to end, with how long that takes by a drain.
func (r *Registry) draining(reason string, until *time.Time) string {
	if until == nil {
		return reason
	}
	return reason + "; draining for " + until.Sub(stamp(r.opts.Now())).Round(time.Second/10).String()
}

// left is how much of a drain is left, at most the whole of it: a clock that was set
// back makes it no longer.
func left(until *time.Time, whole time.Duration, now time.Time) time.Duration {
	if until == nil {
		return 0
	}
	return min(max(until.Sub(now), 0), whole)
}
