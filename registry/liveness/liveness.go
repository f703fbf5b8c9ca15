package liveness

import (
	"fmt"
	"time"

	"github.com/muster-cloud/muster"
)

// The defaults of Options.
const (
	DefaultInterval       = 10 * time.Second
	DefaultUnhealthyAfter = 30 * time.Second
	DefaultPruneAfter     = 5 * time.Minute
	DefaultBrakeMax       = 30 * time.Minute
)

// overdueBeats is how many beats a node has to miss to be counted by the brake.
const overdueBeats = 2

// Options sets the thresholds. The zero value works.
type Options struct {
	Interval       time.Duration // how often an agent beats; 0: DefaultInterval
	UnhealthyAfter time.Duration // silence that makes a node UNHEALTHY; 0: DefaultUnhealthyAfter
	PruneAfter     time.Duration // silence that prunes it; 0: DefaultPruneAfter
	BrakeMax       time.Duration // how long the brake holds at most; 0: DefaultBrakeMax
}

// WithDefaults returns o with its zero fields filled in.
func (o Options) WithDefaults() Options {
	for _, d := range []struct {
		field    *time.Duration
		fallback time.Duration
	}{
		{&o.Interval, DefaultInterval},
		{&o.UnhealthyAfter, DefaultUnhealthyAfter},
		{&o.PruneAfter, DefaultPruneAfter},
		{&o.BrakeMax, DefaultBrakeMax},
	} {
		if *d.field <= 0 {
			*d.field = d.fallback
		}
	}
	return o
}

// Validate refuses thresholds that contradict each other.
func (o Options) Validate() error {
	o = o.WithDefaults()
	if o.UnhealthyAfter < o.Interval {
		return muster.InvalidField("unhealthy-after", "%s is shorter than the heartbeat interval %s; every node would flap", o.UnhealthyAfter, o.Interval)
	}
	if o.PruneAfter <= o.UnhealthyAfter {
		return muster.InvalidField("prune-after", "%s is not longer than unhealthy-after %s; choose a longer one", o.PruneAfter, o.UnhealthyAfter)
	}
	return nil
}

// Observed is a node as a sweep sees it. Spans begin at the end of a grace, if
// that is later than the beat.
type Observed struct {
	Status muster.NodeStatus
	// Silence is the span since its last beat.
	Silence time.Duration
	// PruneSilence is the span since its last beat or its fresh prune clock, whichever is later.
	PruneSilence time.Duration
	// Swept says that an earlier sweep found it UNHEALTHY already.
	Swept bool
	// Uncounted says that the brake ended while it was silent: it is left out of the count until it beats.
	Uncounted bool
}

// Decision is what a sweep makes of a node: a status and why. Keep means that
// nothing changes.
type Decision struct {
	Keep   bool
	Status muster.NodeStatus
	Reason string
}

// Decide makes the decision for one node; while the brake holds nobody is pruned.
func (o Options) Decide(n Observed, brake bool) Decision {
	switch {
	case n.Status == muster.Unhealthy && n.Silence < o.UnhealthyAfter:
		return Decision{Status: muster.Healthy, Reason: "it beats again"}
	case n.Status == muster.Healthy && n.Silence >= o.UnhealthyAfter:
		return Decision{Status: muster.Unhealthy, Reason: fmt.Sprintf("no beat for %s", o.UnhealthyAfter)}
	case n.Status == muster.Unhealthy && n.Swept && n.PruneSilence >= o.PruneAfter && !brake:
		return Decision{Status: muster.Pruned, Reason: fmt.Sprintf("no beat for %s", o.PruneAfter)}
	}
	return Decision{Keep: true}
}

// Expires reports whether a sweep would take the node's word away: it turns
// UNHEALTHY, or is pruned.
func (o Options) Expires(n Observed) bool {
	d := o.Decide(n, false)
	return !d.Keep && d.Status != muster.Healthy
}

// Overdue reports whether the brake counts the node as silent.
func (o Options) Overdue(n Observed) bool { return n.Silence >= overdueBeats*o.Interval }

// Count is how many of the nodes that count are overdue.
type Count struct{ Overdue, Nodes int }

// Add counts a node.
func (c *Count) Add(o Options, n Observed) {
	if n.Uncounted {
		return
	}
	c.Nodes++
	if o.Overdue(n) {
		c.Overdue++
	}
}

// Brakes reports whether so many are silent that nobody may be pruned: more
// than half of 3 or more, or both of 2.
func (c Count) Brakes() bool {
	if c.Nodes == 2 {
		return c.Overdue == 2
	}
	return c.Nodes >= 3 && 2*c.Overdue > c.Nodes
}
