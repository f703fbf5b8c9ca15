package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster/registry/store"
)

func TestStore_LoadsWhatWasCommitted(t *testing.T) {
	dir := t.TempDir()
	s := open(t, store.Options{Dir: dir})
	j := newJournal(load(t, s))
	node := aNode(1)
	b := j.batch(node, anInstance(1, node))
	commit(t, s, b)
	state := load(t, s)
	if diff := cmp.Diff(b.Nodes, state.Nodes); diff != "" {
		t.Errorf("nodes (-written +loaded):\n%s", diff)
	}
	if diff := cmp.Diff(b.Instances, state.Instances); diff != "" {
		t.Errorf("instances (-written +loaded):\n%s", diff)
	}
	changes, err := s.ChangesAfter(t.Context(), 0, 10)
	if err != nil || len(changes) != 2 {
		t.Fatalf("%d changes, %v", len(changes), err)
	}
}
