package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/muster-cloud/muster"
)

const (
	// maxRead is the most rows of one read of the log.
	maxRead = 1000
	// blockSize is how many revisions a block covers.
	blockSize = 256
)

// Source is where changes came from.
type Source string

// The sources of changes.
const (
	FromRing Source = "ring"
	FromLog  Source = "log"
)

// After returns up to limit changes (at most 1,000) that follow a revision, from
// the ring when it has them, else from the log; none when after is the head.
// COMPACTED below the floor, UNAVAILABLE when the log cannot be read.
func (h *Hub) After(ctx context.Context, after int64, limit int) ([]*muster.Change, Source, error) {
	limit = max(1, min(limit, maxRead))
	s := h.snapshot()
	if after < s.floor.Revision {
		return nil, "", s.compacted("revision %d is older than the log, which begins after %d", after, s.floor.Revision)
	}
	upTo := min(s.head.Revision, after+int64(limit))
	if upTo <= after {
		return nil, FromRing, nil
	}
	if changes, ok := h.copyRing(make([]*muster.Change, 0, upTo-after), s.history, after, upTo); ok {
		return changes, FromRing, nil
	}
	changes, err := h.readLog(ctx, s, after, int(upTo-after))
	return changes, FromLog, err
}

// readLog reads the count changes that follow after and makes sure that none is
// missing. COMPACTED when the floor has risen above after meanwhile.
func (h *Hub) readLog(ctx context.Context, s state, after int64, count int) ([]*muster.Change, error) {
	h.logReads.Add(1)
	changes, err := h.log.ChangesAfter(ctx, after, count)
	switch {
	case muster.CodeOf(err) == muster.Compacted:
		return nil, err
	case err != nil:
		return nil, unreadable(after, err)
	}
	for i, c := range changes {
		if c.Revision != after+1+int64(i) {
			now := h.snapshot()
			if after < now.floor.Revision {
				return nil, now.compacted("revision %d has just been compacted", after)
			}
			return nil, muster.Errorf(muster.Internal, "the change log has %d where %d belongs", c.Revision, after+1+int64(i))
		}
		c.Epoch = s.epoch
		if c.Node == nil && c.Instance == nil {
			if err := c.Decode(); err != nil {
				return nil, err
			}
		}
	}
	if len(changes) != count {
		return nil, unreadable(after, fmt.Errorf("it has %d of %d announced changes", len(changes), count))
	}
	return changes, nil
}

func unreadable(after int64, err error) error {
	return muster.Errorf(muster.Unavailable, "the change log after revision %d cannot be read now; watch again from your last cursor: %w", after, err)
}

// blocks are the parts of the log that were read last, shared by all who catch up.
type blocks struct {
	slots chan struct{} // one token a read at the same time
	limit int

	mu      sync.Mutex
	recent  []*block // the most recently used first
	loading map[int64]*loading
}

// block holds changes of the revisions (index*blockSize, (index+1)*blockSize],
// without those below the floor and those that did not exist when it was read.
type block struct {
	history uint64
	index   int64
	changes []*muster.Change
}

type loading struct {
	done chan struct{}
	err  error
}

func newBlocks(limit, reads int) *blocks {
	return &blocks{slots: make(chan struct{}, reads), limit: limit, loading: map[int64]*loading{}}
}

func blockIndex(revision int64) int64 { return (revision - 1) / blockSize }

func (b *blocks) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recent = nil
}

// after returns the changes of one block that follow a revision; none when they
// have to be loaded.
func (b *blocks) after(history uint64, revision int64) []*muster.Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.afterLocked(history, revision)
}

func (b *blocks) afterLocked(history uint64, revision int64) []*muster.Change {
	index := blockIndex(revision + 1)
	for i, k := range b.recent {
		if k.index != index || k.history != history {
			continue
		}
		copy(b.recent[1:i+1], b.recent[:i])
		b.recent[0] = k
		skip := revision + 1 - k.changes[0].Revision
		if skip < 0 || skip >= int64(len(k.changes)) {
			return nil
		}
		return k.changes[skip:]
	}
	return nil
}

// addLocked puts a block first, in place of an older copy of it.
func (b *blocks) addLocked(k *block) {
	kept := []*block{k}
	for _, other := range b.recent {
		if other.index != k.index && len(kept) < b.limit {
			kept = append(kept, other)
		}
	}
	b.recent = kept
}

// load reads the block that holds the change after a revision, unless it is there
// or somebody is reading it already. It waits for its turn.
func (h *Hub) load(ctx context.Context, history uint64, revision int64) error {
	b, index := h.blocks, blockIndex(revision+1)
	for {
		b.mu.Lock()
		if b.afterLocked(history, revision) != nil {
			b.mu.Unlock()
			return nil
		}
		l := b.loading[index]
		if l == nil {
			l = &loading{done: make(chan struct{})}
			b.loading[index] = l
			b.mu.Unlock()
			return h.loadBlock(ctx, index, l)
		}
		b.mu.Unlock()
		select {
		case <-l.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		// The reader's own end is not this caller's: try again.
		if l.err != nil && !errors.Is(l.err, context.Canceled) && !errors.Is(l.err, context.DeadlineExceeded) {
			return l.err
		}
	}
}

func (h *Hub) loadBlock(ctx context.Context, index int64, l *loading) error {
	k, err := h.readBlock(ctx, index)
	b := h.blocks
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.loading, index)
	if err == nil {
		b.addLocked(k)
	}
	l.err = err
	close(l.done)
	return err
}

func (h *Hub) readBlock(ctx context.Context, index int64) (*block, error) {
	select {
	case h.blocks.slots <- struct{}{}:
		defer func() { <-h.blocks.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		s := h.snapshot()
		first := max(index*blockSize, s.floor.Revision)
		limit := min((index+1)*blockSize, s.head.Revision) - first
		if limit <= 0 {
			return nil, s.compacted("revision %d is older than the log, which begins after %d", index*blockSize, s.floor.Revision)
		}
		changes, err := h.readLog(ctx, s, first, int(limit))
		if muster.CodeOf(err) == muster.Compacted && h.snapshot().floor.Revision > s.floor.Revision {
			continue // what is above the floor now is all there
		}
		return &block{history: s.history, index: index, changes: changes}, err
	}
}
