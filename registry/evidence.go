package registry

import (
	"time"

	"github.com/muster-cloud/muster"
)

// NodeEvidence returns why a node is not healthy: what was observed of its
// beats. Nil when it is. Of a node as it was, in a status that it has left since,
// only the reason is known.
func (r *Registry) NodeEvidence(n *muster.Node) *muster.Evidence {
	if n.Status == muster.Healthy {
		return nil
	}
	e := &muster.Evidence{Reason: n.StatusReason}
	if now := r.View().NodeByUID(n.UID); now == nil || now.Status != n.Status {
		return e
	}
	if last := r.LastSeen(n); !last.IsZero() {
		silence := max(r.silence(n, last), 0).Truncate(time.Millisecond)
		missed := int(silence / r.opts.Liveness.Interval)
		e.LastBeat, e.Silence, e.MissedBeats = &last, &silence, &missed
	}
	e.ClockSkew = r.beats.copyOf(n.UID).skew
	return e
}

// silence is measured on the monotonic clock when the beat came in this life of
// the server, else on the wall clock, for people.
func (r *Registry) silence(n *muster.Node, stored time.Time) time.Duration {
	if at := r.beats.seen(n.UID); !at.IsZero() {
		return time.Since(at)
	}
	return r.opts.Now().Sub(stored)
}

// InstanceEvidence returns why an instance is not healthy: how it ended, or what
// is wrong with its node. Nil when it is.
func (r *Registry) InstanceEvidence(i *muster.Instance) *muster.Evidence {
	switch i.Status {
	case muster.Failed, muster.Lost, muster.Unknown:
		e := &muster.Evidence{Reason: i.StatusReason, ExitCode: i.ExitCode}
		if n := r.View().NodeByUID(i.NodeUID); n != nil && i.Status == muster.Lost {
			if of := r.NodeEvidence(n); of != nil {
				e.LastBeat, e.Silence, e.MissedBeats, e.ClockSkew = of.LastBeat, of.Silence, of.MissedBeats, of.ClockSkew
			}
		}
		return e
	case muster.Running, muster.Provisioning, muster.Stopping:
		if n := r.View().NodeByUID(i.NodeUID); n != nil {
			if e := r.NodeEvidence(n); e != nil {
				e.Reason = "its node " + string(n.ID) + " is " + string(n.Status) + ": " + e.Reason
				return e
			}
		}
	}
	return nil
}
