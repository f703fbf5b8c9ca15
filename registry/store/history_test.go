package store_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/store"
)

func revisions(changes []*muster.Change) []int64 {
	var all []int64
	for _, c := range changes {
		all = append(all, c.Revision)
	}
	return all
}

// aLog has revision 1 for the node and then i-1, i-2, i-3, i-1, … up to 31.
func aLog(t *testing.T, s *store.Store) *journal {
	t.Helper()
	node := aNode(1)
	j := newJournal(load(t, s))
	commit(t, s, j.batch(node))
	for range 10 {
		commit(t, s, j.batch(anInstance(1, node), anInstance(2, node), anInstance(3, node)))
	}
	return j
}

func TestStore_ReadsTheLog(t *testing.T) {
	s := open(t, store.Options{Dir: t.TempDir()})
	j := aLog(t, s)
	node := string(aNode(1).UID)

	changes, err := s.ChangesAfter(t.Context(), 5, 4)
	if want := []int64{6, 7, 8, 9}; err != nil || !slices.Equal(revisions(changes), want) {
		t.Errorf("after 5: %v, want %v (%v)", revisions(changes), want, err)
	}
	for _, c := range changes {
		if c.Epoch != j.epoch || c.Instance == nil || c.Instance.Revision != c.Revision || string(c.Instance.ID) != c.ObjectID {
			t.Errorf("change %d is not complete: %+v", c.Revision, c)
		}
	}
	if changes, err = s.ChangesAfter(t.Context(), 31, 10); err != nil || len(changes) != 0 {
		t.Errorf("after the head: %v (%v)", revisions(changes), err)
	}
	changes, err = s.ChangesOfAfter(t.Context(), "i-2", 6, 3)
	if want := []int64{9, 12, 15}; err != nil || !slices.Equal(revisions(changes), want) {
		t.Errorf("of i-2 after 6: %v, want %v (%v)", revisions(changes), want, err)
	}
	if changes, err = s.ChangesOfAfter(t.Context(), "i-9", 0, 3); err != nil || len(changes) != 0 {
		t.Errorf("of an unknown object: %v (%v)", revisions(changes), err)
	}

	before := s.Statements()
	last, err := s.LastChanges(t.Context(), []string{"i-3", node, "i-9", "i-1", "i-1"}, 3)
	if n := s.Statements() - before; n != 1 {
		t.Errorf("the last changes took %d statements", n)
	}
	want := map[string][]int64{"i-3": {31, 28, 25}, node: {1}, "i-1": {29, 26, 23}}
	if err != nil || len(last) != len(want) {
		t.Errorf("the last changes of %d objects: %v", len(last), err)
	}
	for id, revs := range want {
		if got := revisions(last[id]); !slices.Equal(got, revs) {
			t.Errorf("the last changes of %s: %v, want %v", id, got, revs)
		}
	}
	if last[node][0].Node == nil || last["i-1"][0].Epoch != j.epoch {
		t.Error("the last changes are not decoded")
	}
	if last, err := s.LastChanges(t.Context(), nil, 3); err != nil || len(last) != 0 {
		t.Errorf("of no object: %v (%v)", last, err)
	}
}

func TestStore_RefusesAGap(t *testing.T) {
	s := open(t, store.Options{Dir: t.TempDir()})
	j := aLog(t, s)
	floor, _, err := s.Compact(t.Context(), muster.Retention{Keep: 11, MaxAge: -1})
	if err != nil {
		t.Fatal(err)
	}
	oldest := muster.Cursor{Epoch: j.epoch, Position: floor}.String()
	// 20 is the floor: each of the objects has its newest change of the first 20.
	for after, want := range map[int64][]int64{0: {1, 18, 19, 20, 21}, 20: {21, 22, 23, 24, 25}, 21: {22, 23, 24, 25, 26}} {
		changes, err := s.ChangesAfter(t.Context(), after, 5)
		if err != nil || !slices.Equal(revisions(changes), want) {
			t.Errorf("after %d: %v, want %v (%v)", after, revisions(changes), want, err)
		}
	}
	for _, after := range []int64{1, 19} {
		if changes, err := s.ChangesAfter(t.Context(), after, 5); muster.CodeOf(err) != muster.Compacted {
			t.Errorf("after %d: %v (%v)", after, revisions(changes), err)
		} else if e, _ := errors.AsType[*muster.Error](err); e.Details["oldest"] != oldest {
			t.Errorf("after %d: the oldest cursor is %v, want %s", after, e.Details["oldest"], oldest)
		}
	}
	changes, err := s.ChangesOfAfter(t.Context(), "i-1", 0, 2)
	if want := []int64{20, 23}; err != nil || !slices.Equal(revisions(changes), want) {
		t.Errorf("of i-1: %v, want %v (%v)", revisions(changes), want, err)
	}
}

func TestStore_ReadsWhileACommitIsUnderWay(t *testing.T) {
	var s *store.Store
	reading := false
	s = open(t, store.Options{Dir: t.TempDir(), Fault: func(p store.Point) error {
		if !reading || p != store.BeforeCommit {
			return nil
		}
		changes, err := s.ChangesAfter(t.Context(), 0, 10)
		if err != nil || len(changes) != 1 {
			t.Errorf("%d changes: %v", len(changes), err)
		}
		if nodes := load(t, s).Nodes; len(nodes) != 1 {
			t.Errorf("%d nodes", len(nodes))
		}
		return nil
	}})
	j := newJournal(load(t, s))
	commit(t, s, j.batch(aNode(1)))
	reading = true
	commit(t, s, j.batch(aNode(2)))
	if nodes := load(t, s).Nodes; len(nodes) != 2 {
		t.Errorf("%d nodes after the commit", len(nodes))
	}
}

func TestStore_IsOfNoUseAfterClose(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	j := newJournal(load(t, s))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func() error{
		"load":    func() error { _, err := s.Load(t.Context()); return err },
		"commit":  func() error { return s.Commit(t.Context(), j.batch(aNode(1))) },
		"changes": func() error { _, err := s.ChangesAfter(t.Context(), 0, 1); return err },
		"compact": func() error { _, _, err := s.Compact(t.Context(), muster.Retention{Keep: 1}); return err },
	}
	for name, call := range calls {
		if err := call(); muster.CodeOf(err) != muster.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}
