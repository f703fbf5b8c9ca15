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
func (r *Registry) drainStep(w *Writes, d drainStep, now time.Time) {
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
	w.Node(after, fmt.Sprintf("the drain's deadline has passed: stopping %d instances", len(d.busy)))
	for _, i := range d.busy {
		if i.Status != muster.Running && i.Status != muster.Provisioning {
			continue // it is ending already
		}
		next := i.Clone()
		next.Desired, next.Status, next.StatusReason = muster.WantStopped, muster.Stopping, "its node is drained"
		w.Assign(next, next.StatusReason)
	}
}
