package store_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/store"
)

// model is what a log that is never compacted would say.
type model struct {
	dir     string
	fault   func() error
	store   *store.Store
	journal *journal
	log     []*muster.Change
	floor   int64
}

func (m *model) open(t *rapid.T) {
	s, err := store.Open(context.Background(), store.Options{Dir: m.dir, Fault: func(p store.Point) error {
		if p == store.BeforeSweep && m.fault != nil {
			return m.fault()
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	m.store = s
	state, err := s.Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if state.Floor.Revision != m.floor {
		t.Fatalf("the floor is %d, want %d", state.Floor.Revision, m.floor)
	}
	if m.journal == nil {
		m.journal = newJournal(state)
	}
	m.journal.term = state.Term
}

// commit changes some of a few objects, so that each has many changes.
func (m *model) commit(t *rapid.T) {
	var objects []any
	node := aNode(0)
	for n := range rapid.IntRange(1, 6).Draw(t, "changes") {
		if n == 0 && len(m.log) == 0 {
			objects = append(objects, node)
			continue
		}
		objects = append(objects, anInstance(rapid.IntRange(1, 5).Draw(t, "instance"), node))
	}
	b := m.journal.batch(objects...)
	for _, c := range b.Changes {
		c.Deleted = c.Kind == muster.KindInstance && rapid.IntRange(0, 2).Draw(t, "deleted") == 0
	}
	if err := m.store.Commit(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	m.log = append(m.log, b.Changes...)
}

// compact compacts, and may be cut short.
func (m *model) compact(t *rapid.T) {
	r := muster.Retention{
		Keep:      rapid.IntRange(-1, 40).Draw(t, "keep"),
		MaxAge:    time.Duration(rapid.IntRange(-1, 40).Draw(t, "age")) * time.Second,
		Now:       epochStart().Add(time.Duration(m.journal.revision) * time.Second),
		BatchRows: rapid.IntRange(1, 9).Draw(t, "rows"),
	}
	// A change's time is its revision in seconds.
	head := m.journal.revision
	if keep := int64(r.Keep); keep > 0 {
		m.floor = max(m.floor, head-keep)
	}
	if age := int64(r.MaxAge / time.Second); age > 0 {
		m.floor = max(m.floor, head-age-1)
	}
	cut := errors.New("cut short")
	left := rapid.IntRange(0, 12).Draw(t, "transactions until it is cut short")
	m.fault = func() error {
		if left--; left < 0 {
			return cut
		}
		return nil
	}
	floor, _, err := m.store.Compact(context.Background(), r)
	m.fault = nil
	if err != nil && !errors.Is(err, cut) {
		t.Fatal(err)
	}
	if floor.Revision != m.floor {
		t.Fatalf("the floor is %d, want %d (%+v, head %d)", floor.Revision, m.floor, r, head)
	}
	if err == nil {
		m.checkSwept(t)
	}
}

// at is the newest change of each object at or below a revision, without those
// that are gone.
func at(changes []*muster.Change, revision int64) map[string]int64 {
	state := map[string]int64{}
	for _, c := range changes {
		switch {
		case c.Revision > revision:
		case c.Deleted:
			delete(state, c.ObjectID)
		default:
			state[c.ObjectID] = c.Revision
		}
	}
	return state
}

func (m *model) changes(t *rapid.T, after int64) []*muster.Change {
	changes, err := m.store.ChangesAfter(context.Background(), after, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

// check holds at any time, also in the middle of a compaction.
func (m *model) check(t *rapid.T) {
	kept := m.changes(t, 0)
	for r := m.floor; r <= m.journal.revision; r++ {
		if diff := cmp.Diff(at(m.log, r), at(kept, r)); diff != "" {
			t.Fatalf("the state at %d, floor %d, head %d (-want +replayed):\n%s", r, m.floor, m.journal.revision, diff)
		}
	}
	above := m.changes(t, m.floor)
	if int64(len(above)) != m.journal.revision-m.floor {
		t.Fatalf("%d changes above the floor %d, and the head is %d", len(above), m.floor, m.journal.revision)
	}
	for i, c := range above {
		want := m.log[m.floor+int64(i)]
		if c.Revision != want.Revision || c.ObjectID != want.ObjectID || c.Batch != want.Batch {
			t.Fatalf("change %d is %+v, want %+v", i, c, want)
		}
	}
	m.checkPositions(t)
}

func (m *model) checkPositions(t *rapid.T) {
	head := m.journal.revision
	for _, r := range []int64{0, 1, m.floor - 1, m.floor, m.floor + 1, head - 1, head, head + 1} {
		position, found, err := m.store.PositionAt(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		want := muster.Position{}
		if r > 0 && r <= head && r >= m.floor {
			want = muster.Position{Revision: r, Tag: m.log[r-1].Batch}
		}
		if should := want.Revision > 0 || r == 0 && m.floor == 0; r >= 0 && found != should || position != want {
			t.Fatalf("position at %d is %v, %v; want %v, %v (floor %d)", r, position, found, want, should, m.floor)
		}
	}
}

// checkSwept holds after a compaction: below the floor is no more than there has to be.
func (m *model) checkSwept(t *rapid.T) {
	var below []int64
	for _, c := range m.changes(t, 0) {
		if c.Revision <= m.floor {
			below = append(below, c.Revision)
		}
	}
	if want := slices.Sorted(maps.Values(at(m.log, m.floor))); !slices.Equal(below, want) {
		t.Fatalf("at or below the floor %d are %v, want %v", m.floor, below, want)
	}
}

func TestStore_CompactKeepsWhatReplayNeeds(t *testing.T) {
	root := t.TempDir()
	made(t, filepath.Join(root, "empty"), 0)
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		m := &model{dir: filepath.Join(root, strconv.Itoa(runs))}
		if err := os.CopyFS(m.dir, os.DirFS(filepath.Join(root, "empty"))); err != nil {
			t.Fatal(err)
		}
		m.open(t)
		defer func() { _ = m.store.Close() }()
		m.commit(t)
		t.Repeat(map[string]func(*rapid.T){
			"commit":       m.commit,
			"commit again": m.commit,
			"compact":      m.compact,
			"reopen": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "whether to") != 0 {
					return // now and then is enough
				}
				if err := m.store.Close(); err != nil {
					t.Fatal(err)
				}
				m.open(t)
			},
			"": m.check,
		})
	})
}

func TestStore_CompactLetsOthersWrite(t *testing.T) {
	var s *store.Store
	var j *journal
	between, told := 0, 0
	node := aNode(1)
	s = open(t, store.Options{Dir: t.TempDir(), Fault: func(p store.Point) error {
		if p == store.BeforeSweep {
			between++
			commit(t, s, j.batch(node))
			if state := load(t, s); state.Floor.Revision != 40 {
				t.Errorf("the floor is %d while rows are deleted", state.Floor.Revision)
			}
		}
		return nil
	}})
	j = newJournal(load(t, s))
	for range 50 {
		commit(t, s, j.batch(node))
	}
	raise := func(floor muster.Position) {
		if state := load(t, s); floor.Revision != 40 || floor.Tag == "" || state.Floor.Revision != 0 {
			t.Errorf("told of the floor %v when it is %d", floor, state.Floor.Revision)
		}
		told++
	}
	floor, deleted, err := s.Compact(t.Context(), muster.Retention{Keep: 10, MaxAge: -1, BatchRows: 10, Raise: raise})
	if told != 1 {
		t.Errorf("told of the floor %d times", told)
	}
	if err != nil || floor.Revision != 40 || deleted != 39 || between != 4 {
		t.Errorf("floor %v, %d deleted in %d parts: %v", floor, deleted, between, err)
	}
	if head := load(t, s).Head.Revision; head != 54 {
		t.Errorf("the head is %d", head)
	}
}

func TestStore_CompactWithoutLimits(t *testing.T) {
	s := open(t, store.Options{Dir: t.TempDir()})
	fill(t, s, 1, 20)
	writes := totalWrites(t, s)
	for _, r := range []muster.Retention{{Keep: -1, MaxAge: -1}, {Now: epochStart()}, {Keep: 21, MaxAge: -1}} {
		floor, deleted, err := s.Compact(t.Context(), r)
		if err != nil || floor.Revision != 0 || deleted != 0 {
			t.Errorf("%+v: floor %v, %d deleted: %v", r, floor, deleted, err)
		}
	}
	if now := totalWrites(t, s); now != writes {
		t.Errorf("%d rows were written for nothing", now-writes)
	}
	floor, deleted, err := s.Compact(t.Context(), muster.Retention{}) // everything is older than 72 h
	if err != nil || floor.Revision != 21 || deleted != 0 {
		t.Errorf("floor %v, %d deleted: %v", floor, deleted, err)
	}
}
