package simulation_test

import (
	"time"

	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/watch"
)

// plan is what a seed decides at once.
type plan struct {
	nodes, operators, watchers int
	chaos                      time.Duration // how long the weather is bad
	gap                        time.Duration // between two events, at most
	pause                      time.Duration // between two wishes of an operator, at most
	keep                       int           // changes that the log keeps
	ring                       int           // changes that the hub keeps
	maxBatch                   int
}

func planOf(seed uint64) plan {
	d := newDice(seed, "plan")
	p := plan{
		nodes: pick(d, []int{1, 2, 2, 3, 3, 3, 4, 5, 5, 7, 10}), operators: d.within(1, 3), watchers: d.within(1, 4),
		chaos: d.span(4*time.Minute, 25*time.Minute), gap: d.span(2*time.Second, 40*time.Second),
		pause: d.span(time.Second, 30*time.Second), keep: pick(d, []int{50, 200, 1000}),
		ring: pick(d, []int{4, 32, 1024}), maxBatch: pick(d, []int{1, 4, 256}),
	}
	if d.chance(0.1) {
		p.nodes, p.chaos = 50, d.span(4*time.Minute, 10*time.Minute)
	}
	if d.chance(0.15) {
		p.chaos += 40 * time.Minute // long enough for a brake that ends by its bound
	}
	return p
}

// terminatedTTL is how long a record of what has ended is kept.
const terminatedTTL = 20 * time.Minute

func (p plan) registry(now func() time.Time) registry.Options {
	return registry.Options{
		MaxBatch: p.maxBatch, MaxQueue: 256, MaxPending: 20, KeepChanges: p.keep, Now: now, TerminatedTTL: terminatedTTL,
	}
}

func (p plan) hub() watch.Options { return watch.Options{RingSize: p.ring, Blocks: 2, CatchUps: 2} }
