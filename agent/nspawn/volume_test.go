package nspawn_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/agent/nspawn"
)

// put makes a file below the directory that machines are allowed.
func (h *host) put(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(h.shared(), name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	return path
}

// hostDir is a mount of a host path.
func hostDir(path string) []muster.VolumeMount {
	return []muster.VolumeMount{{HostPath: path, Path: "/host"}}
}

func TestVolumes_LinksLeadNowhere(t *testing.T) {
	h := newHost(t)
	d := h.open()
	outside := t.TempDir()
	for name, target := range map[string]string{"out": outside, "up": "../..", "etc": "/etc", "deep/out": outside, "inside": "deep"} {
		h.put(t, "deep/kept", "words")
		if err := os.Symlink(target, filepath.Join(h.shared(), name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, path := range map[string]string{
		"a link":                  "out",
		"a link that climbs":      "up",
		"an absolute link":        "etc",
		"what is behind a link":   "etc/ssl",
		"a link in a directory":   "deep/out",
		"what is not there":       "nosuch",
		"what climbs by itself":   "../" + filepath.Base(h.state),
		"what is not there at it": "deep/kept/x",
	} {
		t.Run(name, func(t *testing.T) {
			spec := h.spec("a", "cat /host/*")
			spec.Volumes = hostDir(h.shared() + "/" + path)
			_, err := d.Launch(t.Context(), spec)
			if err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("launch: %v, want an error that names the path", err)
			}
		})
	}
	good := h.spec("b", "cat /host/kept")
	good.Volumes = hostDir(filepath.Join(h.shared(), "inside"))
	if _, err := d.Launch(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	if m := await(t, d, good.Machine, exited); m.Output != "words" {
		t.Errorf("behind a link that stays inside: %+v", m)
	}
	remove(t, d)
}

// TestVolumes_ALinkThatComesLateIsNotFollowed exchanges a directory that was looked at for a link before it is mounted.
func TestVolumes_ALinkThatComesLateIsNotFollowed(t *testing.T) {
	h := newHost(t)
	outside := t.TempDir()
	h.put(t, "in/kept", "words")
	in := filepath.Join(h.shared(), "in")
	d := nspawn.New(nspawn.Options{
		StateDir: h.state, CgroupPrefix: h.prefix + "group", Launcher: testLauncher(), HostPaths: h.hostPaths(),
		Reached: func(step failpoint.Step, _ string) {
			if step == failpoint.LaunchNetwork {
				if err := errors.Join(os.RemoveAll(in), os.Symlink(outside, in)); err != nil {
					t.Error(err)
				}
			}
		},
	})
	spec := h.spec("a", "echo escaped >/host/escaped")
	spec.Volumes = hostDir(in)
	m, err := d.Launch(t.Context(), spec)
	if err != nil || m.State != driver.Exited || !strings.HasPrefix(m.Reason, "could not start: mount "+in) {
		t.Errorf("launched %+v, %v", m, err)
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("it wrote behind the link: %v", left)
	}
	remove(t, d)
}

func TestVolumes_FilesAndOddPaths(t *testing.T) {
	h := newHost(t)
	d := h.open()
	file := h.put(t, "a file: of \\words", "words")
	spec := h.spec("a", "cat '/etc/a b:c\\d'; echo more >>'/etc/a b:c\\d' || echo shut; echo kept >'/data:1/x'; cat '/data:1/in/y'")
	h.put(t, "dir/y", "nested")
	spec.Volumes = []muster.VolumeMount{
		{HostPath: file, Path: "/etc/a b:c\\d", ReadOnly: true},
		{HostPath: filepath.Join(h.shared(), "dir"), Path: "/data:1/in"},
		{Name: "Data_1.x", Path: "/data:1"},
	}
	if _, err := d.Launch(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	m := await(t, d, spec.Machine, exited)
	if !strings.HasPrefix(m.Output, "words") || !strings.Contains(m.Output, "shut") || !strings.HasSuffix(m.Output, "nested") {
		t.Errorf("it ended as %+v", m)
	}
	if text, err := os.ReadFile(filepath.Join(h.state, "volumes", "Data_1.x", "x")); err != nil || string(text) != "kept\n" {
		t.Errorf("in the volume: %q, %v", text, err)
	}
	remove(t, d)
	if text, _ := os.ReadFile(file); string(text) != "words" {
		t.Errorf("the file that is read-only has %q", text)
	}
	if err := d.RemoveVolume(t.Context(), "Data_1.x"); err != nil {
		t.Error(err)
	}
}

// TestVolumes_ARemovalThatIsCutOffGoesOn removes a volume with many files, and one that a dead agent had begun with.
func TestVolumes_ARemovalThatIsCutOffGoesOn(t *testing.T) {
	h := newHost(t)
	d := h.open()
	outside := h.put(t, "outside/kept", "words")
	for _, dir := range []string{"data", ".gone-half"} {
		for i := range 700 {
			path := filepath.Join(h.state, "volumes", dir, fmt.Sprint(i%7), fmt.Sprint(i%5), "a", "b", "c", fmt.Sprint(i))
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(filepath.Dir(outside), filepath.Join(h.state, "volumes", dir, "link")); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.RemoveVolume(ctx, "data"); !errors.Is(err, context.Canceled) {
		t.Errorf("remove without time: %v", err)
	}
	d = h.open()
	if names, err := d.Volumes(t.Context()); err != nil || !slices.Equal(names, []string{"data", "half"}) {
		t.Errorf("volumes %v, %v, want both that are not gone", names, err)
	}
	for _, name := range []string{"data", "half"} {
		if err := d.RemoveVolume(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(h.state, "volumes")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("behind the link: %v", err)
	}
}

// TestVolumes_OutliveEverybodysDeath kills all that a machine consists of.
func TestVolumes_OutliveEverybodysDeath(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "echo words >/data/kept; echo ready; while :; do sleep 60; done")
	spec.Volumes = []muster.VolumeMount{{Name: "data", Path: "/data"}}
	run(t, d, spec)
	await(t, d, spec.Machine, func(driver.Status) bool { return strings.Contains(h.console(spec.Machine), "ready") })
	for _, pid := range processes(h.prefix) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	d = h.open()
	await(t, d, spec.Machine, exited)
	if err := d.RemoveVolume(t.Context(), "data"); !errors.Is(err, driver.ErrInUse) {
		t.Errorf("remove while the machine is there: %v", err)
	}
	remove(t, d)
	if left := traces(h.prefix); len(left) > 0 {
		t.Errorf("left on the machine:\n%s", strings.Join(left, "\n"))
	}
	if names, err := d.Volumes(t.Context()); err != nil || !slices.Equal(names, []string{"data"}) {
		t.Errorf("volumes: %v, %v", names, err)
	}
	if text, err := os.ReadFile(filepath.Join(h.state, "volumes", "data", "kept")); err != nil || string(text) != "words\n" {
		t.Errorf("in the volume: %q, %v", text, err)
	}
	if err := d.RemoveVolume(t.Context(), "data"); err != nil {
		t.Error(err)
	}
}
