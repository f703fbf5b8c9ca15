package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/store"
)

// faults are the errors that strike at each point; none at first.
type faults map[store.Point]error

func (f faults) strike(p store.Point) error { return f[p] }

func TestStore_CommitSaysWhatHappened(t *testing.T) {
	full := sqlite3.Error{Code: sqlite3.ErrFull}
	constraint := sqlite3.Error{Code: sqlite3.ErrConstraint}
	lost := errors.New("the answer was lost")
	const (
		committed = "committed"
		refused   = "refused"
		unknown   = "unknown"
		poison    = "poison"
	)
	cases := []struct {
		name   string
		faults faults
		want   string
		there  bool // whether the database has it
	}{
		{"nothing is wrong", faults{}, committed, true},
		{"the disk is full at the first write", faults{store.BeforeWrite: full}, refused, false},
		{"the disk is full at the last write", faults{store.BeforeCommit: full}, refused, false},
		{"it takes too long", faults{store.BeforeCommit: context.DeadlineExceeded}, refused, false},
		{"what is written is wrong", faults{store.BeforeCommit: constraint}, poison, false},
		{"COMMIT fails", faults{store.DuringCommit: full}, refused, false},
		{"COMMIT fails for a reason that nobody knows", faults{store.DuringCommit: lost}, refused, false},
		{"the answer of COMMIT is lost", faults{store.AfterCommit: lost}, committed, true},
		{"COMMIT fails and the counter cannot be read", faults{store.DuringCommit: full, store.Verify: lost}, unknown, false},
		{"the answer is lost and the counter cannot be read", faults{store.AfterCommit: lost, store.Verify: lost}, unknown, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			now := faults{}
			s := open(t, store.Options{Dir: t.TempDir(), Fault: func(p store.Point) error { return now.strike(p) }})
			j := newJournal(load(t, s))
			commit(t, s, j.batch(aNode(1)))

			now = c.faults
			err := s.Commit(t.Context(), j.batch(aNode(2)))
			got := committed
			switch {
			case errors.Is(err, muster.ErrOutcomeUnknown):
				got = unknown
			case muster.CodeOf(err) == muster.Unavailable:
				got = refused
			case err != nil:
				got = poison
			}
			if got != c.want {
				t.Errorf("%s, want %s: %v", got, c.want, err)
			}
			now = faults{}
			state := load(t, s)
			if there := len(state.Nodes) == 2 && state.Head.Revision == 2; there != c.there {
				t.Errorf("the database has %d nodes at revision %d", len(state.Nodes), state.Head.Revision)
			}
			// The connection is not left inside a transaction.
			commit(t, s, newJournal(state).batch(aNode(3)))
		})
	}
}

func TestStore_CommitThatFailsCostsTheConnection(t *testing.T) {
	now := faults{}
	s := open(t, store.Options{Dir: t.TempDir(), Fault: func(p store.Point) error { return now.strike(p) }})
	j := newJournal(load(t, s))
	commit(t, s, j.batch(aNode(1)))
	if totalWrites(t, s) == 0 {
		t.Fatal("the connection has written nothing")
	}
	now = faults{store.DuringCommit: sqlite3.Error{Code: sqlite3.ErrIoErr}}
	if err := s.Commit(t.Context(), j.batch(aNode(2))); muster.CodeOf(err) != muster.Unavailable {
		t.Fatal(err)
	}
	if n := totalWrites(t, s); n != 0 {
		t.Errorf("the same connection is used on; it has written %d rows", n)
	}
}

func TestStore_CommitWithoutRevision(t *testing.T) {
	lost := errors.New("the answer was lost")
	now := faults{}
	s := open(t, store.Options{Dir: t.TempDir(), Fault: func(p store.Point) error { return now.strike(p) }})
	j := newJournal(load(t, s))
	commit(t, s, j.batch(aNode(1)))
	head := load(t, s).Head

	only := func(id string) *muster.Batch {
		b := j.batch()
		b.Tag = strings.Repeat("f", 15) + id
		b.Requests = []*muster.Request{{Principal: "p", RequestID: id, Hash: "h", ObjectID: "o", At: epochStart()}}
		return b
	}
	commit(t, s, only("1"))
	now = faults{store.AfterCommit: lost}
	commit(t, s, only("2"))
	now = faults{store.DuringCommit: lost}
	if err := s.Commit(t.Context(), only("3")); muster.CodeOf(err) != muster.Unavailable {
		t.Errorf("a commit that did not happen: %v", err)
	}
	now = faults{}
	state := load(t, s)
	if len(state.Requests) != 2 {
		t.Errorf("%d requests", len(state.Requests))
	}
	if state.Head != head {
		t.Errorf("the head moved from %v to %v, and no cursor would fit any more", head, state.Head)
	}
}

func TestStore_CommitNoticesWhenMemoryIsBehind(t *testing.T) {
	s := open(t, store.Options{Dir: t.TempDir()})
	state := load(t, s)
	j := newJournal(state)
	commit(t, s, j.batch(aNode(1)))
	cases := []struct {
		name   string
		change func(*muster.Batch)
	}{
		{"another revision", func(b *muster.Batch) { b.From-- }},
		{"another epoch", func(b *muster.Batch) { b.Epoch = strings.Repeat("0", 16) }},
		{"an earlier term", func(b *muster.Batch) { b.Term-- }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newJournal(load(t, s)).batch(aNode(2))
			c.change(b)
			if err := s.Commit(t.Context(), b); !errors.Is(err, muster.ErrOutcomeUnknown) {
				t.Errorf("got %v", err)
			}
			if n := len(load(t, s).Nodes); n != 1 {
				t.Errorf("%d nodes: part of the batch was written", n)
			}
		})
	}
}

func TestStore_CommitRefusesWhatIsWrong(t *testing.T) {
	s := open(t, store.Options{Dir: t.TempDir()})
	j := newJournal(load(t, s))
	node := aNode(1)
	b := j.batch(node, anInstance(1, node), anInstance(2, aNode(99)))
	err := s.Commit(t.Context(), b)
	if err == nil || muster.CodeOf(err) != muster.Internal || errors.Is(err, muster.ErrOutcomeUnknown) {
		t.Errorf("an instance on a node that is not there: %v", err)
	}
	if state := load(t, s); state.Head.Revision != 0 || len(state.Nodes) != 0 {
		t.Errorf("part of the batch was written: %d nodes at revision %d", len(state.Nodes), state.Head.Revision)
	}
	commit(t, s, newJournal(load(t, s)).batch(node, anInstance(1, node)))
}

func TestStore_CommitOutlivesAFullDisk(t *testing.T) {
	s := open(t, store.Options{Dir: t.TempDir()})
	if err := s.LimitPages(40); err != nil {
		t.Fatal(err)
	}
	node := aNode(1)
	j := newJournal(load(t, s))
	commit(t, s, j.batch(node))
	var err error
	acked := j.revision
	for n := 1; n < 1000 && err == nil; n++ {
		acked = j.revision
		err = s.Commit(t.Context(), j.batch(anInstance(n, node)))
	}
	if muster.CodeOf(err) != muster.Unavailable || !strings.Contains(err.Error(), "is full; free some space there and try again") {
		t.Fatalf("a full disk: %v", err)
	}
	state := load(t, s)
	if state.Head.Revision != acked {
		t.Errorf("the head is %d, and %d was acknowledged", state.Head.Revision, acked)
	}
	if err := s.LimitPages(0); err != nil {
		t.Fatal(err)
	}
	commit(t, s, newJournal(state).batch(anInstance(5000, node)))
}

func TestStore_CommitWaitsForALockAndThenGivesUp(t *testing.T) {
	dir := t.TempDir()
	s := open(t, store.Options{Dir: dir, BusyTimeout: 20 * time.Millisecond})
	state := load(t, s)
	other, err := rawDB(t, dir).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Commit(t.Context(), newJournal(state).batch(aNode(1)))
	if muster.CodeOf(err) != muster.Unavailable || !strings.Contains(err.Error(), "another process holds the database") {
		t.Errorf("a locked database: %v", err)
	}
	load(t, s) // reads go on
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	commit(t, s, newJournal(state).batch(aNode(1)))
}

func TestStore_CommitWritesFinalStates(t *testing.T) {
	dir := t.TempDir()
	s := open(t, store.Options{Dir: dir})
	j := newJournal(load(t, s))
	node := aNode(1)
	all := []any{node}
	for n := range 300 { // more than one INSERT takes
		all = append(all, anInstance(n+1, node))
	}
	b := j.batch(all...)
	b.Sequences = map[string]int64{muster.InstanceSequence: 300, "other": 1}
	commit(t, s, b)

	node.Labels, node.Images = nil, nil
	moved := anInstance(7, node)
	moved.NodeUID, moved.PID, moved.Status = "", nil, muster.Pending
	b = j.batch(node, moved)
	for n := range 200 {
		b.DeletedInstances = append(b.DeletedInstances, muster.InstanceIDOf(int64(n+100)))
	}
	b.Sequences = map[string]int64{muster.InstanceSequence: 301}
	commit(t, s, b)

	state := load(t, s)
	if len(state.Instances) != 100 || len(state.Nodes) != 1 || state.Nodes[0].Labels != nil {
		t.Fatalf("%d instances, nodes %v", len(state.Instances), state.Nodes)
	}
	for _, i := range state.Instances {
		if i.ID == moved.ID && (i.NodeUID != "" || i.PID != nil || i.Status != muster.Pending) {
			t.Errorf("%s is not what was written last: %+v", i.ID, i)
		}
	}
	if state.Sequences[muster.InstanceSequence] != 301 || state.Sequences["other"] != 1 {
		t.Errorf("sequences %v", state.Sequences)
	}
	var null bool
	row := rawDB(t, dir).QueryRowContext(t.Context(), "SELECT node_uid IS NULL FROM instances WHERE id = 'i-7'")
	if err := row.Scan(&null); err != nil || !null {
		t.Errorf("no node is not NULL (%v)", err)
	}
}
