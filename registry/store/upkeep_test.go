package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/store"
)

func TestStore_SavesLastSeenOnly(t *testing.T) {
	s := open(t, store.Options{Dir: t.TempDir()})
	fill(t, s, 3, 3)
	before := load(t, s)
	seen := map[muster.NodeUID]time.Time{
		aNode(1).UID: epochStart().Add(time.Minute),
		aNode(3).UID: epochStart().Add(time.Hour + time.Nanosecond).In(time.FixedZone("somewhere", 3600)),
		aNode(9).UID: epochStart(), // is not there
	}
	writes := totalWrites(t, s)
	if err := s.SaveLastSeen(t.Context(), seen); err != nil {
		t.Fatal(err)
	}
	if n := totalWrites(t, s) - writes; n != 2 {
		t.Errorf("%d rows were written for 2 nodes", n)
	}
	want := load(t, s)
	for i, n := range before.Nodes {
		if at, ok := seen[n.UID]; ok {
			before.Nodes[i] = n.Clone()
			before.Nodes[i].LastSeen = at.UTC()
		}
	}
	if diff := cmp.Diff(before, want); diff != "" {
		t.Errorf("-want +loaded:\n%s", diff)
	}
	statements := s.Statements()
	if err := s.SaveLastSeen(t.Context(), nil); err != nil || s.Statements() != statements {
		t.Errorf("nothing to save took a statement (%v)", err)
	}
}

func TestStore_ForgetsOldRequests(t *testing.T) {
	s := open(t, store.Options{Dir: t.TempDir()})
	j := newJournal(load(t, s))
	b := j.batch(aNode(1))
	for n := range 1200 { // more than one transaction takes
		b.Requests = append(b.Requests, &muster.Request{
			Principal: fmt.Sprintf("p%d", n%2), RequestID: fmt.Sprint(n / 2), Hash: "h", ObjectID: "i-1",
			At: epochStart().Add(time.Duration(n) * time.Millisecond),
		})
	}
	commit(t, s, b)
	if err := s.ForgetRequests(t.Context(), epochStart().Add(1197*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	got := map[muster.Request]bool{}
	for _, r := range load(t, s).Requests {
		got[*r] = true
	}
	want := map[muster.Request]bool{*b.Requests[1197]: true, *b.Requests[1198]: true, *b.Requests[1199]: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +loaded:\n%s", diff)
	}
}

// totalWrites is how many rows the store has written since it was opened.
func totalWrites(t *testing.T, s *store.Store) int64 {
	t.Helper()
	n, err := s.RowsChanged(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}
