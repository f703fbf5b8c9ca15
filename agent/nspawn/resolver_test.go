package nspawn_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn"
)

func TestResolver_IsTheFile(t *testing.T) {
	h := newHost(t)
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	image := filepath.Join(h.state, "images", "minimal")
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for name, c := range map[string]struct {
		image func() error // what the image has
		conf  string
		want  string
		addr  bool
	}{
		"none":                        {func() error { return nil }, conf, "ours", true},
		"a file":                      {func() error { return os.WriteFile(image+"/etc/resolv.conf", []byte("its own"), 0o644) }, conf, "ours", true},
		"a file, left":                {func() error { return os.WriteFile(image+"/etc/resolv.conf", []byte("its own"), 0o644) }, nspawn.ResolvOff, "its own", true},
		"no network":                  {func() error { return os.WriteFile(image+"/etc/resolv.conf", []byte("its own"), 0o644) }, conf, "its own", false},
		"a link to nowhere":           {func() error { return os.Symlink("../run/systemd/resolve/stub-resolv.conf", image+"/etc/resolv.conf") }, conf, "ours", true},
		"a link that leaves the root": {func() error { return os.Symlink(elsewhere, image+"/etc/resolv.conf") }, conf, "ours", true},
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(image + "/etc/resolv.conf")
			if err := c.image(); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(conf, []byte("ours"), 0o644); err != nil {
				t.Fatal(err)
			}
			d := nspawn.New(nspawn.Options{StateDir: h.state, CgroupPrefix: h.prefix + "group", Launcher: testLauncher(), ResolvConf: c.conf})
			spec := h.spec("a", "cat /etc/resolv.conf")
			if !c.addr {
				spec.Addr, spec.Gateway = "", ""
			}
			if _, err := d.Launch(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			if m := await(t, d, spec.Machine, exited); m.Output != c.want {
				t.Errorf("it has %q, want %q", m.Output, c.want)
			}
			remove(t, d)
		})
	}
	if _, err := os.Lstat(elsewhere); err == nil {
		t.Error("a link of the image's was followed out of it")
	}
}

func TestResolver_ThatCannotBeGiven(t *testing.T) {
	h := newHost(t)
	d := nspawn.New(nspawn.Options{StateDir: h.state, CgroupPrefix: h.prefix + "group", Launcher: testLauncher(), ResolvConf: "/nosuch"})
	if _, err := d.Launch(t.Context(), h.spec("a", "true")); muster.CodeOf(err) != muster.Unavailable || !strings.Contains(err.Error(), "--resolv-conf") {
		t.Errorf("a file that is not there: %v, want UNAVAILABLE and what to do", err)
	}
	image := filepath.Join(h.state, "images", "minimal")
	if err := os.MkdirAll(image+"/etc/resolv.conf/full", 0o755); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("ours"), 0o644); err != nil {
		t.Fatal(err)
	}
	d = nspawn.New(nspawn.Options{StateDir: h.state, CgroupPrefix: h.prefix + "group", Launcher: testLauncher(), ResolvConf: conf})
	m, err := d.Launch(t.Context(), h.spec("a", "true"))
	if err != nil || m.State != driver.Exited || !strings.HasPrefix(m.Reason, "could not start: write its /etc/resolv.conf: ") {
		t.Errorf("an image with a directory there: %+v, %v, want the reason", m, err)
	}
	remove(t, d)
}
