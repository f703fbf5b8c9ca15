package keyfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/keyfile"
)

func TestWrite_IsForTheOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := keyfile.Write(path, []byte("after")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if text, err := keyfile.Read(path); err != nil || string(text) != "after" {
		t.Errorf("%q, %v", text, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
	if err := keyfile.Write(filepath.Join(t.TempDir(), "none", "key"), nil); err == nil {
		t.Error("a directory that is not there was written into")
	}
}

func TestRead_Refuses(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		mode fs.FileMode
		want muster.Code
	}{
		"owner": {0o600, ""}, "owner, read only": {0o400, ""}, "group": {0o640, muster.Forbidden},
		"everybody": {0o644, muster.Forbidden}, "others write": {0o602, muster.Forbidden},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("hush"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := keyfile.Read(path)
		if muster.CodeOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "chmod 600 "+path) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := keyfile.Read(dir); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("a directory: %v", err)
	}
	if _, err := keyfile.Read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
}

func TestReplace_KeepsTheOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := keyfile.Replace(path, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	if err := keyfile.Write(path, []byte("before")); err != nil {
		t.Fatal(err)
	}
	owner := os.Geteuid()
	if owner == 0 { // nobody else can give a file away
		owner = 12345
		if err := os.Chown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := keyfile.Replace(path, []byte("after")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || int(info.Sys().(*syscall.Stat_t).Uid) != owner {
		t.Errorf("%v, %v", info, err)
	}
	if text, err := keyfile.Read(path); err != nil || string(text) != "after" {
		t.Errorf("%q, %v", text, err)
	}
}
