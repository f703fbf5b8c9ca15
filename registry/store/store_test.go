package store_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/store"
)

// open opens a store in dir, and closes it with the test.
func open(t testing.TB, o store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func load(t testing.TB, s *store.Store) *muster.State {
	t.Helper()
	state, err := s.Load(t.Context())
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	return state
}

// epochStart is when everything in these tests begins.
func epochStart() time.Time { return time.Date(2026, 5, 4, 3, 2, 1, 987654321, time.UTC) }

// journal makes batches that follow each other, as a committer would.
type journal struct {
	epoch    string
	term     int64
	revision int64
	last     map[string]int64
}

func newJournal(state *muster.State) *journal {
	return &journal{epoch: state.Epoch, term: state.Term, revision: state.Head.Revision, last: map[string]int64{}}
}

// batch returns the next batch: a change for each of the objects.
func (j *journal) batch(objects ...any) *muster.Batch {
	b := &muster.Batch{Epoch: j.epoch, Term: j.term, From: j.revision, Tag: fmt.Sprintf("%016x", j.revision+0xabc0000)}
	for _, o := range objects {
		j.revision++
		c := &muster.Change{
			Revision: j.revision, Batch: b.Tag, Actor: "test", Reason: "because",
			At: epochStart().Add(time.Duration(j.revision) * time.Second),
		}
		switch o := o.(type) {
		case *muster.Node:
			n := *o
			n.Revision = j.revision
			c.Kind, c.ObjectID, c.Status, c.Node = muster.KindNode, string(n.UID), string(n.Status), &n
			b.Nodes = append(b.Nodes, &n)
		case *muster.Instance:
			i := *o
			i.Revision = j.revision
			c.Kind, c.ObjectID, c.Status, c.Instance = muster.KindInstance, string(i.ID), string(i.Status), &i
			b.Instances = append(b.Instances, &i)
		}
		c.PreviousRevision = j.last[c.ObjectID]
		j.last[c.ObjectID] = c.Revision
		b.Changes = append(b.Changes, c)
	}
	b.To = j.revision
	return b
}

func aNode(n int) *muster.Node {
	return &muster.Node{
		UID: muster.NodeUID(fmt.Sprintf("%016x", n)), ID: muster.NodeID(fmt.Sprintf("node-%d", n)),
		Hostname: fmt.Sprintf("node-%d.example.org", n), Addr: "10.0.0.1", Port: 8080, Role: muster.Compute,
		CPUCount: 8, MemoryMB: 16384, Labels: muster.Map{"zone": "a", "rack": fmt.Sprint(n % 40)},
		Images: []string{"minimal", "debian-13"}, Version: "0.1.0", BootID: "3f0c9f6e-7d6c-4b6f-8a53-0f5f3f1f9b11",
		Incarnation: 3, Status: muster.Healthy, Schedulable: true, Subnet: "10.213.7.0/24",
		RegisteredAt: epochStart(), LastSeen: epochStart().Add(time.Hour),
	}
}

func anInstance(n int, node *muster.Node) *muster.Instance {
	return &muster.Instance{
		ID: muster.InstanceIDOf(int64(n)), Name: fmt.Sprintf("web-%d", n), NodeUID: node.UID, Type: muster.Nano,
		CPULimit: 25, MemLimitMB: 128, BaseImage: "minimal", Command: []string{"/bin/sleep", "infinity"},
		EnvNames: []string{"PASSWORD"}, Labels: muster.Map{"app": "web"}, Status: muster.Running,
		Desired: muster.WantRunning, Generation: 1, Machine: fmt.Sprintf("abc123-i-%d-1", n), Addr: "10.213.7.9",
		PID: new(4711), CreatedAt: epochStart(), StartedAt: new(epochStart().Add(time.Second)), Reserved: true,
		Env: muster.Map{"PASSWORD": "secret"},
	}
}

func commit(t testing.TB, s *store.Store, b *muster.Batch) {
	t.Helper()
	if err := s.Commit(t.Context(), b); err != nil {
		t.Fatalf("commit of revision %d: %v", b.To, err)
	}
}

// rawDB is the database behind the store's back.
func rawDB(t testing.TB, dir string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, store.FileName)+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}
