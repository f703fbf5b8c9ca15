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
)

// Options sets the thresholds. The zero value works.
type Options struct {
	Interval       time.Duration // how often an agent beats; 0: DefaultInterval
	UnhealthyAfter time.Duration // silence that makes a node UNHEALTHY; 0: DefaultUnhealthyAfter
	PruneAfter     time.Duration // silence that prunes it; 0: DefaultPruneAfter
}

// WithDefaults returns o with its zero fields filled in.
func (o Options) WithDefaults() Options {
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.UnhealthyAfter <= 0 {
		o.UnhealthyAfter = DefaultUnhealthyAfter
	}
	if o.PruneAfter <= 0 {
		o.PruneAfter = DefaultPruneAfter
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

// Observed is a node as a sweep sees it.
type Observed struct {
	Status muster.NodeStatus
	// Silence is the span since its last beat, or since the server began to
	// listen when it has not beaten since.
	Silence time.Duration
	// Swept says that an earlier sweep found it UNHEALTHY already.
	Swept bool
}

// Decision is what a sweep makes of a node: a status and why. Keep means that
// nothing changes.
type Decision struct {
	Keep   bool
	Status muster.NodeStatus
	Reason string
}

// Decide makes the decision for one node.
func (o Options) Decide(n Observed) Decision {
	switch {
	case n.Status == muster.Unhealthy && n.Silence < o.UnhealthyAfter:
		return Decision{Status: muster.Healthy, Reason: "it beats again"}
	case n.Status == muster.Healthy && n.Silence >= o.UnhealthyAfter:
		return Decision{Status: muster.Unhealthy, Reason: fmt.Sprintf("no beat for %s", o.UnhealthyAfter)}
	case n.Status == muster.Unhealthy && n.Swept && n.Silence >= o.PruneAfter:
		return Decision{Status: muster.Pruned, Reason: fmt.Sprintf("no beat for %s", o.PruneAfter)}
	}
	return Decision{Keep: true}
}
