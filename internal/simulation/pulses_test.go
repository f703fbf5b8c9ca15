package simulation_test

import (
	"strings"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/liveness"
)

// slack is what the judge gives the count of the silent: a sweep counts when it
// begins, and a stalled disk may keep it from committing for so long.
const slack = 2 * time.Minute

// pulses is when the registry really heard of each node, and what the brake did.
type pulses struct {
	mu       sync.Mutex
	heard    map[muster.NodeUID][2]time.Time // the last two instants, the newer first
	released time.Time                       // when the brake last ended
}

func newPulses() *pulses { return &pulses{heard: map[muster.NodeUID][2]time.Time{}} }

// hear notes that the registry has just heard of a node.
func (p *pulses) hear(uid muster.NodeUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); !now.Equal(p.heard[uid][0]) {
		p.heard[uid] = [2]time.Time{now, p.heard[uid][0]}
	}
}

// before is when a node was last heard of before this instant: what happens at
// the same one may have come after a decision.
func (p *pulses) before(uid muster.NodeUID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.heard[uid]
	if last[0].Equal(time.Now()) {
		return last[1]
	}
	return last[0]
}

// silence is how long nothing was heard of a node, in this life of the server.
func (p *pulses) silence(l *life, uid muster.NodeUID) time.Duration {
	last := p.before(uid)
	if last.Before(l.listening) {
		last = l.listening
	}
	return time.Since(last)
}

// judgeTurns judges what a batch makes of the nodes' silence, at the instant at
// which it was decided.
func (c *cluster) judgeTurns(l *life, b *muster.Batch) {
	o := liveness.Options{}.WithDefaults()
	for _, change := range b.Changes {
		switch {
		case change.Condition != nil && change.Condition.Name == muster.Brake && change.Condition.Status == muster.Clear:
			c.pulses.mu.Lock()
			c.pulses.released = time.Now()
			c.pulses.mu.Unlock()
		case change.Node == nil || change.PreviousStatus == change.Status:
		case change.Node.Status == muster.Unhealthy:
			if silence := c.pulses.silence(l, change.Node.UID); silence < o.UnhealthyAfter {
				c.fault("%s turns UNHEALTHY after %s of silence", change.Node.ID, silence)
			}
		case change.Node.Status == muster.Pruned && strings.HasPrefix(change.Reason, "no beat"):
			if silence := c.pulses.silence(l, change.Node.UID); silence < o.PruneAfter {
				c.fault("%s is pruned after %s of silence", change.Node.ID, silence)
			}
			c.judgePrune(l, o, change.Node)
		}
	}
}

// judgePrune judges whether so many are silent that nobody may be pruned. Those
// that were silent already when the brake ended do not count.
func (c *cluster) judgePrune(l *life, o liveness.Options, pruned *muster.Node) {
	c.pulses.mu.Lock()
	released := c.pulses.released
	c.pulses.mu.Unlock()
	var count liveness.Count
	for n := range l.View().LiveNodes() {
		silence := c.pulses.silence(l, n.UID)
		if silence >= 2*o.Interval && c.pulses.before(n.UID).Before(released) {
			continue
		}
		count.Nodes++
		if silence >= 2*o.Interval+slack {
			count.Overdue++
		}
	}
	if count.Brakes() {
		c.fault("%s is pruned while %d of %d are silent", pruned.ID, count.Overdue, count.Nodes)
	}
}
