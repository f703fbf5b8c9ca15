package store_test

import (
	"errors"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/store"
)

func TestOpen_GivesANewDatabaseItsIdentity(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b?c#d%20e")
	o := store.Options{Dir: dir}
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	first := load(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	hex := regexp.MustCompile(`^[0-9a-f]+$`)
	if len(first.ClusterUID) != 32 || len(first.Epoch) != 16 || !hex.MatchString(first.ClusterUID+first.Epoch) {
		t.Errorf("cluster %q, epoch %q", first.ClusterUID, first.Epoch)
	}
	if first.Head != (muster.Position{}) || first.Floor != (muster.Position{}) {
		t.Errorf("head %v, floor %v", first.Head, first.Floor)
	}
	if names := slices.Sorted(maps.Keys(contents(t, dir))); !slices.Equal(names, []string{"muster.db", "muster.lock"}) {
		t.Errorf("after closing there is %v", names)
	}
	second := load(t, open(t, o))
	if second.ClusterUID != first.ClusterUID || second.Epoch != first.Epoch {
		t.Error("the identity did not last")
	}
	if second.Term != first.Term+1 {
		t.Errorf("the term went from %d to %d", first.Term, second.Term)
	}
}

func TestOpen_SetsUpItsConnections(t *testing.T) {
	now := faults{}
	s := open(t, store.Options{Dir: t.TempDir(), Fault: func(p store.Point) error { return now.strike(p) }})
	check := func() {
		t.Helper()
		writer, reader, err := s.Pragmas("journal_mode", "synchronous", "foreign_keys", "query_only", "busy_timeout")
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "query_only": "0", "busy_timeout": "5000"}
		if diff := cmp.Diff(want, writer); diff != "" {
			t.Errorf("the writer (-want +got):\n%s", diff)
		}
		if reader["query_only"] != "1" || reader["busy_timeout"] != "5000" {
			t.Errorf("a reader: %v", reader)
		}
	}
	check()
	now = faults{store.DuringCommit: errors.New("no")}
	if err := s.Commit(t.Context(), newJournal(load(t, s)).batch(aNode(1))); err == nil {
		t.Fatal("it was committed")
	}
	check() // on the connection that took the place of the one that failed
}

func TestOpen_TakesTheWriteLockAtOnce(t *testing.T) {
	dir := t.TempDir()
	var tries int
	s := open(t, store.Options{Dir: dir, Fault: func(p store.Point) error {
		if p == store.BeforeWrite {
			tries++
			if _, err := rawDB(t, dir).ExecContext(t.Context(), "PRAGMA busy_timeout = 0; BEGIN IMMEDIATE"); err == nil {
				t.Error("another process could begin to write, and then this one could not go on")
			}
		}
		return nil
	}})
	commit(t, s, newJournal(load(t, s)).batch(aNode(1)))
	if tries != 1 {
		t.Errorf("tried %d times", tries)
	}
}

func TestStore_NoticesAnotherLeader(t *testing.T) {
	dir := t.TempDir()
	s := open(t, store.Options{Dir: dir})
	j := newJournal(load(t, s))
	raw(t, dir, "UPDATE counter SET term = term + 1")
	if err := s.Commit(t.Context(), j.batch(aNode(1))); !errors.Is(err, muster.ErrOutcomeUnknown) {
		t.Errorf("commit: %v", err)
	}
	want := "another server took over the data directory " + dir + " (term 2, this one's is 1): stop one of them"
	if _, err := s.Load(t.Context()); muster.CodeOf(err) != muster.Conflict || err.Error() != want {
		t.Errorf("load: %v, want %s", err, want)
	}
}

func TestStore_CloseLeavesOneFile(t *testing.T) {
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	// Somebody who looks at the database keeps SQLite from clearing up by itself.
	raw := rawDB(t, dir)
	if _, err := raw.ExecContext(t.Context(), "SELECT count(*) FROM nodes"); err != nil {
		t.Fatal(err)
	}
	fill(t, s, 10, 10)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	old := t.TempDir()
	put(t, old, "muster.db", contents(t, dir)["muster.db"])
	if n := len(load(t, open(t, store.Options{Dir: old})).Instances); n != 10 {
		t.Errorf("the database alone has %d instances", n)
	}
}

func TestOpen_GoesOnWhereACreationWasCutShort(t *testing.T) {
	cases := map[string][]string{
		"before anything was written": nil,
		"after the mark":              {"PRAGMA journal_mode = WAL", "PRAGMA application_id = 0x6d737472"},
		"before the first migration": {
			"PRAGMA application_id = 0x6d737472",
			"CREATE TABLE goose_db_version (id integer PRIMARY KEY, version_id integer, is_applied integer, tstamp timestamp DEFAULT (datetime('now')))",
			"INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, 1)",
		},
	}
	for name, statements := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, "muster.db", "")
			raw(t, dir, statements...)
			s := open(t, store.Options{Dir: dir})
			commit(t, s, newJournal(load(t, s)).batch(aNode(1)))
		})
	}
}
