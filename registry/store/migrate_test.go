package store_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/muster-cloud/muster/registry/store"
)

// withSecond is the embedded migration and one after it.
func withSecond(t *testing.T, text string) fs.FS {
	t.Helper()
	first, err := fs.ReadFile(store.Migrations(), "00001_begin.sql")
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{
		"00001_begin.sql":  {Data: first},
		"00002_second.sql": {Data: []byte("-- +goose Up\n" + text)},
	}
}

func TestOpen_MigratesAndKeepsACopy(t *testing.T) {
	dir := t.TempDir()
	made(t, dir, 3)
	s := open(t, store.Options{Dir: dir}.WithMigrations(withSecond(t, "DELETE FROM instances;")))
	for _, name := range []string{"muster.db", "muster.db-wal", "muster.db-shm", "muster.db.before-v2", "muster.lock"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %s and may have secrets", name, info.Mode())
		}
	}
	if state := load(t, s); len(state.Nodes) != 3 || len(state.Instances) != 0 {
		t.Errorf("%d nodes and %d instances after the migration", len(state.Nodes), len(state.Instances))
	}
	old := t.TempDir()
	put(t, old, "muster.db", contents(t, dir)["muster.db.before-v2"])
	if state := load(t, open(t, store.Options{Dir: old})); len(state.Instances) != 3 {
		t.Errorf("the copy has %d instances", len(state.Instances))
	}
}

func TestOpen_UndoesAMigrationThatFails(t *testing.T) {
	dir := t.TempDir()
	made(t, dir, 3)
	bad := withSecond(t, "DELETE FROM instances;\nINSERT INTO no_such_table VALUES (1);")
	for range 2 { // the copy of the first attempt is not in the way of the second
		s, err := store.Open(t.Context(), store.Options{Dir: dir}.WithMigrations(bad))
		if err == nil {
			_ = s.Close()
			t.Fatal("it was opened")
		}
		if !strings.Contains(err.Error(), "no such table: no_such_table") {
			t.Errorf("it says %v", err)
		}
	}
	if state := load(t, open(t, store.Options{Dir: dir})); len(state.Instances) != 3 {
		t.Errorf("%d instances are left", len(state.Instances))
	}
}
