package registry

import (
	"context"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
)

// beats is when each node was last heard of. It is not part of the state: a
// beat stamps it and waits for nothing.
type beats struct {
	mu   sync.RWMutex
	last map[muster.NodeUID]*beat
}

type beat struct {
	mu      sync.Mutex
	at      time.Time // with its monotonic part, for spans
	flushed time.Time
	skew    *time.Duration // how far the node's clock was ahead
	usage   *usage         // nil: not told
	swept   bool           // a sweep found the node UNHEALTHY
	// freshFrom is where the prune clock of a node that was silent when the brake
	// ended begins; uncounted, that the brake leaves it out until it beats.
	freshFrom time.Time
	uncounted bool
}

func (b *beats) of(uid muster.NodeUID) *beat {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.last[uid]
}

// stamp notes that a node was heard of, and reports whether that was the first time.
func (b *beats) stamp(uid muster.NodeUID, at time.Time) (first bool) {
	one := b.make(uid)
	one.mu.Lock()
	defer one.mu.Unlock()
	first = one.at.IsZero()
	one.at, one.uncounted, one.freshFrom = at, false, time.Time{}
	return first
}

// heard notes that a node lives. The first time in this life of the server its entries may
// be refreshed again.
func (r *Registry) heard(uid muster.NodeUID) {
	if !r.beats.stamp(uid, time.Now()) {
		return
	}
	select {
	case r.gate <- struct{}{}:
	default:
	}
}

func (b *beats) make(uid muster.NodeUID) *beat {
	if one := b.of(uid); one != nil {
		return one
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil {
		b.last = map[muster.NodeUID]*beat{}
	}
	if b.last[uid] == nil {
		b.last[uid] = &beat{}
	}
	return b.last[uid]
}

// freshen gives a silent node a fresh prune clock, and may leave it out of the
// brake's count until it beats.
func (b *beats) freshen(uid muster.NodeUID, now time.Time, uncounted bool) {
	one := b.make(uid)
	one.mu.Lock()
	defer one.mu.Unlock()
	one.freshFrom, one.uncounted = now, one.uncounted || uncounted
}

// setSwept remembers whether a sweep found the node UNHEALTHY.
func (b *beats) setSwept(uid muster.NodeUID, swept bool) {
	if one := b.of(uid); one != nil || swept {
		one = b.make(uid)
		one.mu.Lock()
		one.swept = swept
		one.mu.Unlock()
	}
}

// copyOf returns what is known of a node; the zero beat when nothing is.
func (b *beats) copyOf(uid muster.NodeUID) (c struct {
	at, freshFrom    time.Time
	skew             *time.Duration
	swept, uncounted bool
},
) {
	if one := b.of(uid); one != nil {
		one.mu.Lock()
		defer one.mu.Unlock()
		c.at, c.freshFrom, c.skew, c.swept, c.uncounted = one.at, one.freshFrom, one.skew, one.swept, one.uncounted
	}
	return c
}

func (b *beats) setSkew(uid muster.NodeUID, skew time.Duration) {
	one := b.make(uid)
	one.mu.Lock()
	defer one.mu.Unlock()
	one.skew = &skew
}

func (b *beats) forget(uid muster.NodeUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.last, uid)
}

// seen returns when the node was heard of in this life of the server; zero: not yet.
func (b *beats) seen(uid muster.NodeUID) time.Time { return b.copyOf(uid).at }

// Heartbeat stamps that a node lives and tells its agent what to do next. It
// reads memory only. UNKNOWN_NODE: register again; SUPERSEDED: stop.
func (r *Registry) Heartbeat(ctx context.Context, in muster.HeartbeatInput) (*muster.Beat, error) {
	v := r.View()
	n, err := r.speaker(ctx, v, in.UID, in.Incarnation)
	if err != nil {
		return nil, err
	}
	r.heard(n.UID)
	if in.SentAt != nil {
		r.beats.setSkew(n.UID, in.SentAt.Sub(r.opts.Now()))
	}
	if in.Usage != nil {
		r.beats.setUsage(n.UID, newUsage(in.Usage, in.SentAt, time.Now()))
	}
	if n.Status == muster.Unhealthy {
		r.wakeSweeper()
	}
	u := v.use(n.UID)
	beat := &muster.Beat{NextBeatIn: r.opts.Liveness.Interval, Epoch: v.meta().epoch, DesiredRevision: u.desiredRevision, Peers: r.peersTag(v)}
	if u.reportIncarnation == in.Incarnation {
		beat.ReportSequence = u.reportSequence
	}
	return beat, nil
}

func unknownNode(uid muster.NodeUID) *muster.Error {
	return muster.Errorf(muster.UnknownNode, "no node with the uid %q is registered: register it again", uid)
}

func superseded(n *muster.Node) *muster.Error {
	return muster.Errorf(muster.Superseded, "node %s has been registered by a newer start of its agent (incarnation %d): stop this one", n.ID, n.Incarnation)
}

// LastSeen returns when a node was last heard of: in this life of the server,
// else as it was stored.
func (r *Registry) LastSeen(n *muster.Node) time.Time {
	if at := r.beats.seen(n.UID); !at.IsZero() {
		return stamp(at)
	}
	return n.LastSeen
}

// flushLastSeen stores when the nodes were last heard of, for people to read
// after a restart.
func (r *Registry) flushLastSeen(ctx context.Context) error {
	moved := map[muster.NodeUID]time.Time{}
	for n := range r.View().LiveNodes() {
		if at := r.beats.unflushed(n.UID); !at.IsZero() {
			moved[n.UID] = stamp(at)
		}
	}
	if len(moved) == 0 {
		return nil
	}
	return r.Store.SaveLastSeen(ctx, moved)
}

// unflushed returns when the node was last heard of if that has not been
// returned before; zero otherwise.
func (b *beats) unflushed(uid muster.NodeUID) time.Time {
	one := b.of(uid)
	if one == nil {
		return time.Time{}
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if !one.at.After(one.flushed) {
		return time.Time{}
	}
	one.flushed = one.at
	return one.at
}
