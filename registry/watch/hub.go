package watch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-cloud/muster"
)

// Log is the durable change log, which a registry/store is.
type Log interface {
	// ChangesAfter returns up to limit changes with a revision above after,
	// ascending; COMPACTED when after is below its floor, which it has to tell
	// SetFloor first. Their objects need not be decoded.
	ChangesAfter(ctx context.Context, after int64, limit int) ([]*muster.Change, error)
	// PositionAt returns the position of a revision, and whether the log has it.
	PositionAt(ctx context.Context, revision int64) (muster.Position, bool, error)
}

// Options are the settings of a Hub; the zero value works.
type Options struct {
	RingSize int           // changes kept in memory; 0: 16384
	Blocks   int           // blocks of 256 changes kept of what was read from the log; 0: 32
	CatchUps int           // reads of the log at the same time; 0: 8
	Progress time.Duration // silence after which a follower says PROGRESS; 0: 60 s
}

func (o Options) withDefaults() Options {
	if o.RingSize <= 0 {
		o.RingSize = 16384
	}
	if o.Blocks <= 0 {
		o.Blocks = 32
	}
	if o.CatchUps <= 0 {
		o.CatchUps = 8
	}
	if o.Progress <= 0 {
		o.Progress = time.Minute
	}
	return o
}

// Hub is where changes are announced and followed. Make one with New, tell it
// where the history stands with Reset, then Publish. All methods may be called
// at the same time.
type Hub struct {
	log     Log
	options Options
	blocks  *blocks

	mu      sync.RWMutex
	state   state
	ring    ring
	changed chan struct{}

	published, logReads atomic.Int64
}

// state is where the history stands.
type state struct {
	epoch   string
	history uint64 // raised when what was before is void
	head    muster.Position
	floor   muster.Position
	oldest  int64 // the first revision in the ring; above head when it is empty
}

// New makes a hub on a log. Reset it before use.
func New(log Log, options Options) *Hub {
	options = options.withDefaults()
	return &Hub{
		log:     log,
		options: options,
		blocks:  newBlocks(options.Blocks, options.CatchUps),
		ring:    make(ring, options.RingSize),
		state:   state{oldest: 1},
		changed: make(chan struct{}),
	}
}

// Reset says where the history stands: at start, and after memory was loaded
// again. In the same epoch and at the same or a higher head the history goes on:
// followers take what they missed from the log, and a Publish of it is ignored.
// Otherwise the history is another one and followers end with COMPACTED.
func (h *Hub) Reset(epoch string, head, floor muster.Position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.state
	same := old.epoch == epoch && (head.Revision > old.head.Revision || head == old.head)
	h.state = state{epoch: epoch, history: old.history, head: head, floor: floor, oldest: old.oldest}
	if same {
		h.state.floor = later(old.floor, floor) // it may have risen since it was read
	} else {
		h.state.history++
		h.blocks.clear()
	}
	if !same || head != old.head {
		clear(h.ring)
		h.state.oldest = head.Revision + 1
	}
	h.wake()
}

// Publish announces changes that are durable: in order, their revisions
// consecutive, their objects decoded. They are shared from then on and not to be
// changed. What is already announced is ignored; after a gap followers take what
// is missing from the log.
func (h *Hub) Publish(changes []*muster.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.state.head
	for _, c := range changes {
		head := h.state.head.Revision
		if c.Revision <= head {
			continue
		}
		if c.Revision != head+1 {
			clear(h.ring)
			h.state.oldest = c.Revision
		}
		h.ring.put(c)
		h.state.head = muster.Position{Revision: c.Revision, Tag: c.Batch}
		h.state.oldest = max(h.state.oldest, c.Revision-int64(len(h.ring))+1)
		h.published.Add(1)
	}
	if h.state.head != before {
		h.wake()
	}
}

// wake tells everyone who waits; h.mu is held.
func (h *Hub) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// SetFloor says up to where the log is about to be compacted: the oldest position
// that can be resumed from. It only ever rises in one history.
func (h *Hub) SetFloor(floor muster.Position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.floor = later(h.state.floor, floor)
}

// Head is the newest position that has been announced.
func (h *Hub) Head() muster.Position { return h.snapshot().head }

// Oldest is the oldest cursor that can be resumed from.
func (h *Hub) Oldest() muster.Cursor {
	s := h.snapshot()
	return muster.Cursor{Epoch: s.epoch, Position: s.floor}
}

// Changed returns a channel that is closed at the next Publish or Reset. Take it
// before looking, so that nothing is missed in between.
func (h *Hub) Changed() <-chan struct{} {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.changed
}

// Stats are counters since the hub was made.
type Stats struct {
	Published int64 // changes announced
	LogReads  int64 // reads of the log
}

// Stats returns the counters.
func (h *Hub) Stats() Stats {
	return Stats{Published: h.published.Load(), LogReads: h.logReads.Load()}
}

func (h *Hub) snapshot() state {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.state
}
