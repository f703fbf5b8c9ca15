package registry

import (
	"context"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/liveness"
)

func (r *Registry) wakeSweeper() {
	select {
	case r.sweeps <- struct{}{}:
	default: // it is awake
	}
}

// sweep looks at the nodes' silence, each interval and when it is woken.
func (r *Registry) sweep(ctx context.Context) error {
	ticker := time.NewTicker(r.opts.SweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-r.sweeps:
		}
		r.sweepOnce(ctx)
	}
}

func (r *Registry) sweepOnce(ctx context.Context) {
	since, listening := r.listeningSince()
	if !listening {
		return
	}
	var turning []*muster.Node
	for n := range r.View().LiveNodes() {
		if r.decide(n, since).Keep {
			r.markSwept(n)
		} else {
			turning = append(turning, n)
		}
	}
	if len(turning) == 0 {
		return
	}
	if err := r.system(ctx, r.turn(turning, since)); err != nil {
		r.Logger.Warn("nodes' turns were not committed; the next sweep tries again", "nodes", len(turning), "err", err)
		return
	}
	for _, before := range turning {
		if n := r.View().NodeByUID(before.UID); n != nil && n.Status != before.Status {
			r.Logger.Info("node turned", "node", n.ID, "from", before.Status, "to", n.Status, "reason", n.StatusReason)
		}
	}
}

func (r *Registry) listeningSince() (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.listening, !r.listening.IsZero()
}

func (r *Registry) decide(n *muster.Node, since time.Time) liveness.Decision {
	last := since
	one := r.beats.of(n.UID)
	swept := false
	if one != nil {
		one.mu.Lock()
		if one.at.After(last) {
			last = one.at
		}
		swept = one.swept
		one.mu.Unlock()
	}
	return r.opts.Liveness.Decide(liveness.Observed{Status: n.Status, Silence: time.Since(last), Swept: swept || one == nil})
}

// markSwept remembers that a sweep has seen the node UNHEALTHY.
func (r *Registry) markSwept(n *muster.Node) {
	if one := r.beats.of(n.UID); one != nil {
		one.mu.Lock()
		one.swept = n.Status == muster.Unhealthy
		one.mu.Unlock()
	}
}

// turn commits what silence makes of nodes, as it is by then.
func (r *Registry) turn(nodes []*muster.Node, since time.Time) Mutation {
	return func(v View, w *Writes) error {
		for _, seen := range nodes {
			n := v.NodeByUID(seen.UID)
			if n == nil || !n.Live() {
				continue
			}
			if d := r.decide(n, since); !d.Keep {
				r.takeOut(v, w, n, d.Status, d.Reason)
			}
		}
		return nil
	}
}

// takeOut gives a node a status; one that leaves the registry takes its
// instances along: they are LOST, and those being removed count as gone.
func (r *Registry) takeOut(v View, w *Writes, n *muster.Node, s muster.NodeStatus, reason string) {
	after := n.Clone()
	after.Status, after.StatusReason = s, reason
	w.Node(after, reason)
	if after.Live() {
		return
	}
	for i := range v.InstancesOn(n.UID) {
		if i.Status == muster.Terminated || i.Status == muster.Lost {
			continue
		}
		lost := i.Clone()
		lost.Reserved, lost.PID = false, nil
		if i.Status == muster.Terminating {
			r.terminated(lost, "its node "+string(n.ID)+" is gone")
		} else {
			lost.Status, lost.StatusReason = muster.Lost, "its node "+string(n.ID)+" is gone: "+reason
		}
		w.Instance(lost, lost.StatusReason)
	}
}

// terminated makes i a terminated instance.
func (r *Registry) terminated(i *muster.Instance, reason string) {
	at := stamp(r.opts.Now())
	i.Status, i.StatusReason, i.TerminatedAt = muster.Terminated, reason, &at
	i.Reserved, i.PID = false, nil
}
