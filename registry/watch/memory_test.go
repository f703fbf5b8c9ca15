package watch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

const epoch = "00000000000000aa"

// memory is a log in memory that can be compacted and made to fail.
type memory struct {
	mu    sync.Mutex
	rows  []muster.Change // revisions 1, 2, …
	floor int64
	fails bool
	hold  chan struct{} // not nil: reads wait for it
	begin func()        // not nil: called before a read
	reads int
	most  int // reads at the same time
	now   int
}

var errDisk = errors.New("the disk is gone")

// ChangesAfter is as the store's: after 0, it has what compaction kept.
func (m *memory) ChangesAfter(ctx context.Context, after int64, limit int) ([]*muster.Change, error) {
	m.enter()
	defer m.exit()
	if m.begin != nil {
		m.begin()
	}
	if m.hold != nil {
		select {
		case <-m.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails {
		return nil, errDisk
	}
	if after != 0 && after < m.floor {
		return nil, muster.Errorf(muster.Compacted, "the changes after %d are no longer all there", after)
	}
	var found []*muster.Change
	for _, row := range m.rows {
		if row.Revision > max(after, m.floor) && len(found) < limit {
			row.Node, row.Epoch = nil, ""
			found = append(found, &row)
		}
	}
	return found, nil
}

func (m *memory) enter() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	m.now++
	m.most = max(m.most, m.now)
}

func (m *memory) exit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now--
}

func (m *memory) PositionAt(_ context.Context, revision int64) (muster.Position, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails {
		return muster.Position{}, false, errDisk
	}
	if revision <= m.floor || revision > int64(len(m.rows)) {
		return muster.Position{}, false, nil
	}
	row := m.rows[revision-1]
	return muster.Position{Revision: row.Revision, Tag: row.Batch}, true, nil
}

// write appends count changes of nodes n0 to n4 in turn, durable and not announced.
func (m *memory) write(t testing.TB, count int) []*muster.Change {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	var written []*muster.Change
	for range count {
		revision := int64(len(m.rows) + 1)
		c := muster.Change{
			Revision: revision, Epoch: epoch, Batch: fmt.Sprintf("%016x", revision), At: time.Unix(revision, 0).UTC(),
			Kind: muster.KindNode, ObjectID: fmt.Sprintf("n%d", revision%5), Status: string(muster.Healthy),
		}
		c.Node = &muster.Node{ID: muster.NodeID(c.ObjectID), Revision: revision}
		if err := c.Encode(); err != nil {
			t.Fatal(err)
		}
		m.rows = append(m.rows, c)
		written = append(written, &c)
	}
	return written
}

// compact drops what is at or below a revision and returns its position.
func (m *memory) compact(revision int64) muster.Position {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.floor = revision
	return muster.Position{Revision: revision, Tag: m.rows[revision-1].Batch}
}

func all(*muster.Change) (bool, bool) { return true, false }

// newHub makes a hub at the beginning of an empty history.
func newHub(m *memory, o watch.Options) *watch.Hub {
	h := watch.New(m, o)
	h.Reset(epoch, muster.Position{}, muster.Position{})
	return h
}

// drain asks a follower until nothing is due.
func drain(t testing.TB, f *watch.Follower) []watch.Item {
	t.Helper()
	var items []watch.Item
	for {
		item, err := f.Next(time.Now())
		switch {
		case errors.Is(err, watch.ErrBehind):
			if err := f.Load(t.Context()); err != nil {
				t.Fatalf("load: %v", err)
			}
		case err != nil:
			t.Fatalf("after %d items: %v", len(items), err)
		case item.Type == "":
			return items
		default:
			items = append(items, item)
		}
	}
}

// short writes items as a line: P an object that is present, S SYNCED, ~ PROGRESS,
// and the revisions of changes, with a ! when the object left.
func short(items []watch.Item) string {
	text := ""
	for _, i := range items {
		switch i.Type {
		case muster.EventPresent:
			text += " P" + i.Change.ObjectID
		case muster.EventSynced:
			text += fmt.Sprintf(" S%d", i.Position.Revision)
		case muster.EventProgress:
			text += fmt.Sprintf(" ~%d", i.Position.Revision)
		case muster.EventChange:
			text += fmt.Sprintf(" %d", i.Change.Revision)
			if i.Left {
				text += "!"
			}
		}
	}
	return text
}

func cursorAt(revision int64) *muster.Cursor {
	c := muster.Cursor{Epoch: epoch, Position: muster.Position{Revision: revision}}
	if revision > 0 {
		c.Tag = fmt.Sprintf("%016x", revision)
	}
	return &c
}
