package image_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/image"
)

func TestStore_BuildMinimal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	store := image.Open(dir)
	made, err := store.BuildMinimal(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if made.Name != image.Minimal || made.Boot || made.Init != "/sbin/init" || made.Created.IsZero() || !strings.HasSuffix(made.Source, "/busybox") {
		t.Errorf("made %+v", made)
	}
	for _, path := range []string{"bin/sh", "bin/cat", "sbin/init", "etc/os-release", "etc/passwd", "usr/lib/os-release"} {
		if _, err := os.Stat(filepath.Join(made.Path, path)); err != nil {
			t.Errorf("the image lacks %s: %v", path, err)
		}
	}
	out, err := exec.CommandContext(t.Context(), "chroot", made.Path, "/bin/sh", "-c", "echo works").CombinedOutput()
	if err != nil || string(out) != "works\n" {
		t.Errorf("its shell says %q, %v", out, err)
	}
	listed, err := store.List()
	if err != nil || len(listed) != 1 || listed[0] != made {
		t.Errorf("listed %+v, %v, want what was made: %+v", listed, err, made)
	}
	if path, err := store.Path(image.Minimal); err != nil || path != made.Path {
		t.Errorf("its path is %q, %v, want %q", path, err, made.Path)
	}
	if _, err := store.BuildMinimal(t.Context(), ""); muster.CodeOf(err) != muster.AlreadyExists {
		t.Errorf("built again: %v, want ALREADY_EXISTS", err)
	}
	checkEntries(t, dir, "minimal", "minimal.json")
}

func TestStore_BuildMinimalRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		busybox string
		cancel  bool
		message string
	}{
		"a path without a file": {"/nosuch", false, "/nosuch is no busybox"},
		"a script":              {"/etc/passwd", false, "/etc/passwd is no busybox"},
		"a dynamic program":     {"/bin/ls", false, "/bin/ls is linked dynamically"},
		"a cancelled context":   {"", true, "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancel {
				cancel()
			}
			_, err := image.Open(dir).BuildMinimal(ctx, c.busybox)
			if err == nil || !strings.Contains(err.Error(), c.message) {
				t.Errorf("build: %v, want %q", err, c.message)
			}
			checkEntries(t, dir)
		})
	}
}

func TestStore_FindsWhatSomebodyPutThere(t *testing.T) {
	dir := t.TempDir()
	store := image.Open(dir)
	for _, path := range []string{"debian/usr/lib/systemd/systemd", "plain/bin/sh", "custom/sbin/init", ".making-1/bin/sh", "x.json/bin/sh"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	listed, err := store.List()
	if err != nil {
		t.Fatal(err)
	}
	want := []image.Image{
		{Name: "custom", Init: "/sbin/init"}, {Name: "debian", Boot: true}, {Name: "plain"},
	}
	if len(listed) != len(want) {
		t.Fatalf("listed %+v, want %+v", listed, want)
	}
	for i, img := range listed {
		want[i].Path = filepath.Join(dir, want[i].Name)
		if img != want[i] {
			t.Errorf("listed %+v, want %+v", img, want[i])
		}
	}
}

func TestStore_FindRefuses(t *testing.T) {
	store := image.Open(filepath.Join(t.TempDir(), "absent"))
	if listed, err := store.List(); err != nil || len(listed) != 0 {
		t.Errorf("listed %v, %v in a store that is not there", listed, err)
	}
	if _, err := store.Find("nosuch"); !errors.Is(err, driver.ErrNoImage) {
		t.Errorf("find: %v, want ErrNoImage", err)
	}
	for _, name := range []string{"", "..", "a/b", ".hidden", strings.Repeat("x", 300), "a\x00"} {
		if _, err := store.Find(name); muster.CodeOf(err) != muster.Invalid {
			t.Errorf("find %.10q: %v, want INVALID", name, err)
		}
	}
}

func checkEntries(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the store has %v, want %v", got, want)
	}
}
