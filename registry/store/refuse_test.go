package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/store"
)

func TestOpen_Refuses(t *testing.T) {
	cases := []struct {
		name    string
		prepare func(t *testing.T, dir string) // dir is not there yet
		code    muster.Code
		message string // with DIR for the directory
	}{
		{
			"a second server", func(t *testing.T, dir string) { open(t, store.Options{Dir: dir}) }, muster.Conflict,
			fmt.Sprintf("the data directory DIR is in use by another muster server (pid %d): stop that server, or give another --data-dir", os.Getpid()),
		},
		{
			"a file in place of the directory", func(t *testing.T, dir string) { write(t, dir, "x") }, muster.Invalid,
			"the data directory DIR cannot be made: mkdir DIR: not a directory; give another --data-dir, or make it and let this user write to it",
		},
		{
			"a file that is no database", func(t *testing.T, dir string) { put(t, dir, "muster.db", strings.Repeat("hello ", 1000)) }, muster.Conflict,
			"DIR/muster.db is damaged or not a database: it does not begin like a database; restore a backup, or move it away to start with an empty registry",
		},
		{
			"a short file that is no database", func(t *testing.T, dir string) { put(t, dir, "muster.db", "hi") }, muster.Conflict,
			"DIR/muster.db is damaged or not a database: it does not begin like a database; restore a backup, or move it away to start with an empty registry",
		},
		{
			"a database without its second half", truncated, muster.Conflict,
			"DIR/muster.db is damaged or not a database: database disk image is malformed; restore a backup, or move it away to start with an empty registry",
		},
		{
			"a database with a page overwritten", overwritten, muster.Conflict,
			"DIR/muster.db is damaged or not a database: *; restore a backup, or move it away to start with an empty registry",
		},
		{
			"a write-ahead log without its database", func(t *testing.T, dir string) { put(t, dir, "muster.db-wal", "commits") }, muster.Conflict,
			"DIR/muster.db-wal is there without its database DIR/muster.db: put the database back beside it, or move it away to start with an empty registry",
		},
		{
			"a directory in place of the database", func(t *testing.T, dir string) { put(t, filepath.Join(dir, "muster.db"), "x", "") }, muster.Invalid,
			"the database cannot be used: open DIR/muster.db: is a directory; it has to be a file that this user can read and write",
		},
		{
			"another program's database", foreign, muster.Conflict,
			"DIR/muster.db is a database of another program: move it away, or give another --data-dir",
		},
		{
			"a newer database", newer, muster.Conflict,
			"DIR/muster.db has schema version 7 and this muster knows versions up to 1: upgrade muster, or give another --data-dir",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			c.prepare(t, dir)
			before := contents(t, dir)
			s, err := store.Open(t.Context(), store.Options{Dir: dir})
			if err == nil {
				_ = s.Close()
				t.Fatal("it was opened")
			}
			if code := muster.CodeOf(err); code != c.code {
				t.Errorf("code %s, want %s", code, c.code)
			}
			want := regexp.QuoteMeta(strings.ReplaceAll(c.message, "DIR", dir))
			if !regexp.MustCompile("^" + strings.ReplaceAll(want, `\*`, ".*") + "$").MatchString(err.Error()) {
				t.Errorf("it says\n%s\nwant\n%s", err, strings.ReplaceAll(c.message, "DIR", dir))
			}
			same(t, before, contents(t, dir))
		})
	}
}

func TestOpen_RefusesWithoutAName(t *testing.T) {
	if _, err := store.Open(t.Context(), store.Options{}); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("got %v", err)
	}
}

func TestOpen_RefusesWhatItMayNotWrite(t *testing.T) {
	cases := []struct {
		name    string
		prepare func(t *testing.T, dir string)
		message string
	}{
		{
			"the directory's parent", func(t *testing.T, dir string) { chmod(t, filepath.Dir(dir), 0o555) },
			"the data directory DIR cannot be made: mkdir DIR: permission denied; give another --data-dir, or make it and let this user write to it",
		},
		{
			"the directory", func(t *testing.T, dir string) { put(t, dir, "x", ""); chmod(t, dir, 0o555) },
			"the data directory DIR cannot be written: open DIR/muster.lock: permission denied; let this user write to it, or give another --data-dir",
		},
		{
			"the database", func(t *testing.T, dir string) {
				made(t, dir, 1)
				chmod(t, dir, 0o777)
				chmod(t, filepath.Join(dir, "muster.lock"), 0o666)
				chmod(t, filepath.Join(dir, "muster.db"), 0o444)
			},
			"the database cannot be used: open DIR/muster.db: permission denied; it has to be a file that this user can read and write",
		},
		{
			"nor read the database", func(t *testing.T, dir string) {
				made(t, dir, 1)
				chmod(t, dir, 0o777)
				chmod(t, filepath.Join(dir, "muster.lock"), 0o666)
				chmod(t, filepath.Join(dir, "muster.db"), 0)
			},
			"the database cannot be used: open DIR/muster.db: permission denied; it has to be a file that this user can read and write",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(openTemp(t), "data")
			c.prepare(t, dir)
			before := contents(t, dir)
			err := asNobody(t, func() error {
				s, err := store.Open(t.Context(), store.Options{Dir: dir})
				if err == nil {
					_ = s.Close()
				}
				return err
			})
			if muster.CodeOf(err) != muster.Invalid {
				t.Fatalf("got %v", err)
			}
			want := regexp.QuoteMeta(strings.ReplaceAll(c.message, "DIR", dir))
			if !regexp.MustCompile("^" + strings.ReplaceAll(want, `\*`, ".*") + "$").MatchString(err.Error()) {
				t.Errorf("it says\n%s\nwant\n%s", err, strings.ReplaceAll(c.message, "DIR", dir))
			}
			same(t, before, contents(t, dir))
		})
	}
}

// openTemp is a temporary directory that everybody may enter and write to.
func openTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "muster-store-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	chmod(t, dir, 0o777)
	return dir
}

func chmod(t *testing.T, name string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(name, 0o777) })
}

// asNobody runs do without root's right to every file. The thread that gave it up
// ends with the goroutine.
func asNobody(t *testing.T, do func() error) error {
	t.Helper()
	if os.Getuid() != 0 {
		return do()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			done <- err
			return
		}
		done <- do()
	}()
	return <-done
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// put writes a file into a directory that it makes.
func put(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, name), text)
}

// made makes a database with so many nodes.
func made(t *testing.T, dir string, nodes int) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, nodes, nodes)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func truncated(t *testing.T, dir string) {
	made(t, dir, 300)
	name := filepath.Join(dir, "muster.db")
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, info.Size()/2); err != nil {
		t.Fatal(err)
	}
}

func overwritten(t *testing.T, dir string) {
	made(t, dir, 300)
	f, err := os.OpenFile(filepath.Join(dir, "muster.db"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(bytes.Repeat([]byte("junk"), 1024), 40*4096)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func foreign(t *testing.T, dir string) {
	put(t, dir, "muster.db", "")
	raw(t, dir, "CREATE TABLE goose_db_version (id integer, version_id integer, is_applied integer)")
}

func newer(t *testing.T, dir string) {
	made(t, dir, 1)
	raw(t, dir, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (7, 1)")
}

// raw runs statements behind the store's back.
func raw(t *testing.T, dir string, statements ...string) {
	t.Helper()
	db := rawDB(t, dir)
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// contents returns the files in dir; a dir that is a file is its own.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		if info, denied := d.Info(); errors.Is(err, fs.ErrPermission) && denied == nil {
			// without root, what this user may not read: its size and time have to do
			b, err = fmt.Appendf(nil, "%d bytes of %s", info.Size(), info.ModTime()), nil
		}
		files[strings.TrimPrefix(name, dir+"/")] = string(b)
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return files
}

// same fails when a file came, went or changed; the lock file does not count, and
// neither does the shared memory of an open database.
func same(t *testing.T, before, after map[string]string) {
	t.Helper()
	for _, files := range []map[string]string{before, after} {
		delete(files, "muster.lock")
		delete(files, "muster.db-shm")
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("%s was made", name)
		}
	}
	for name, was := range before {
		if is, ok := after[name]; !ok || is != was {
			t.Errorf("%s was changed or removed", name)
		}
	}
}
