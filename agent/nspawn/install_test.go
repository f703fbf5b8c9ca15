package nspawn_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn"
)

// tarOf packs entries; a file's content is in its Linkname.
func tarOf(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname, h.Size = h.Linkname, "", int64(len(h.Linkname))
		}
		err := w.WriteHeader(&h)
		if err == nil {
			_, err = w.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstandard(t *testing.T, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

// install puts data into a machine as svc-1.
func install(t *testing.T, d *nspawn.Driver, machine string, data []byte) (driver.Installed, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "artifact")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return d.Install(t.Context(), driver.Artifact{Machine: machine, Name: "svc-1", File: f, FileName: "tool", Unpacked: 80 << 20, Entries: 100})
}

// within runs a shell script as root in a machine and returns what it prints.
func within(t *testing.T, d *nspawn.Driver, machine, script string) string {
	t.Helper()
	var out bytes.Buffer
	spec := shell(machine, script)
	spec.User = "0"
	if exit, err := d.Exec(t.Context(), spec, driver.Streams{Stdout: &out, Stderr: &out}); err != nil || exit.Code != 0 {
		t.Errorf("%s: %+v, %v: %s", script, exit, err, out.String())
	}
	return out.String()
}

// TestInstall_IsUndone removes what was installed, twice, and nothing else.
func TestInstall_IsUndone(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600")).Spec.Machine
	if _, err := install(t, d, m, []byte("#!/bin/sh\n")); err != nil {
		t.Fatal(err)
	}
	within(t, d, m, "mkdir /opt/muster/.new-svc-1 /opt/muster/svc-10 && touch /opt/muster/svc-1/more")
	for range 2 {
		if err := d.Uninstall(t.Context(), m, "svc-1"); err != nil {
			t.Fatal(err)
		}
		if left := within(t, d, m, "ls -A /opt/muster"); left != "svc-10\n" {
			t.Errorf("left: %q", left)
		}
	}
	if err := d.Uninstall(t.Context(), m, "../../etc"); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("a path: %v", err)
	}
	if err := d.Uninstall(t.Context(), "absent", "svc-1"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("no machine: %v", err)
	}
	remove(t, d)
}

func TestInstall_WhatIsMade(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600")).Spec.Machine
	tree := tarOf(
		t,
		tar.Header{Typeflag: tar.TypeDir, Name: "bin/", Mode: 0o700, Uid: 1000},
		tar.Header{Typeflag: tar.TypeReg, Name: "bin/run", Mode: 0o6711, Uid: 1000, Gid: 1000, Linkname: "#!/bin/sh\necho it runs\n"},
		tar.Header{Typeflag: tar.TypeReg, Name: "data", Mode: 0o666, Linkname: "text"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/data", Linkname: "../data"},
	)
	const listing = "cd /opt/muster/svc-1; stat -c '%n %a %u:%g' . bin bin/run data; cat bin/data; ls -A .."
	for name, data := range map[string][]byte{"tar": tree, "gzip": zipped(t, tree), "zstd": zstandard(t, tree)} {
		done, err := install(t, d, m, data)
		if err != nil || done.Dir != "/opt/muster/svc-1" || done.Executable != "" || done.Entries != 4 {
			t.Errorf("%s: %+v, %v", name, done, err)
		}
		if got, want := within(t, d, m, listing), ". 755 0:0\nbin 755 0:0\nbin/run 755 0:0\ndata 644 0:0\ntextsvc-1\n"; got != want {
			t.Errorf("%s: it made %q, want %q", name, got, want)
		}
	}
	done, err := install(t, d, m, []byte("#!/bin/sh\necho alone\n"))
	if err != nil || done.Executable != "/opt/muster/svc-1/tool" {
		t.Fatalf("one executable: %+v, %v", done, err)
	}
	service := driver.ProcessSpec{ProcessRef: driver.ProcessRef{Machine: m, Name: "svc-1"}, Command: []string{done.Executable}}
	startProcess(t, d, service)
	if p := awaitProcess(t, d, service.ProcessRef, ended); p.Output != "alone\n" {
		t.Errorf("it ended as %+v", p)
	}
	service.Command = []string{"sh", "-c", "echo x >tool; echo x >other; mv tool tool2"}
	service.Dir = done.Dir
	startProcess(t, d, service)
	awaitProcess(t, d, service.ProcessRef, ended)
	if got := within(t, d, m, "ls -A /opt/muster/svc-1 /opt/muster; cat /opt/muster/svc-1/tool"); got != "/opt/muster:\nsvc-1\n\n/opt/muster/svc-1:\ntool\n#!/bin/sh\necho alone\n" {
		t.Errorf("the service could change what it is made of: %q", got)
	}
	remove(t, d)
}

func TestInstall_Refuses(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600")).Spec.Machine
	if _, err := install(t, d, m, []byte("#!before\n")); err != nil {
		t.Fatal(err)
	}
	file := func(name, text string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Linkname: text}
	}
	link := func(kind byte, name, target string) tar.Header {
		return tar.Header{Typeflag: kind, Name: name, Mode: 0o777, Linkname: target}
	}
	many := make([]tar.Header, 101)
	for i := range many {
		many[i] = file("f"+strings.Repeat("x", i), "")
	}
	for name, c := range map[string]struct {
		data    []byte
		message string
	}{
		"nothing":                {nil, "what came is no artifact"},
		"text":                   {[]byte("hello"), "is no artifact"},
		"a path that leads out":  {tarOf(t, file("../../etc/passwd", "x")), `leads out of it by ".."`},
		"an absolute path":       {tarOf(t, file("/etc/passwd", "x")), "is absolute"},
		"a link that leads out":  {tarOf(t, file("a", ""), link(tar.TypeSymlink, "b", "../../../etc")), `"b"`},
		"an absolute link":       {tarOf(t, link(tar.TypeSymlink, "b", "/etc/passwd")), "out of the artifact"},
		"a file behind a link":   {tarOf(t, link(tar.TypeSymlink, "b", "a"), file("b/c", "x")), "lies behind the symbolic link"},
		"a hard link elsewhere":  {tarOf(t, link(tar.TypeLink, "b", "../../etc/passwd")), "is a hard link"},
		"a device":               {tarOf(t, tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}), "is a device"},
		"too many entries":       {tarOf(t, many...), "is one too many"},
		"too large":              {zstandard(t, tarOf(t, file("a", strings.Repeat("\x00", 81<<20)))), "larger than 83886080 bytes"},
		"a bomb":                 {zipped(t, tarOf(t, file("a", strings.Repeat("\x00", 79<<20)))), "as a bomb does"},
		"half of one":            {zipped(t, tarOf(t, file("a", strings.Repeat("x", 9999))))[:60], "ends in the middle"},
		"something gzip":         {zipped(t, []byte("#!/bin/sh\n")), "ends in the middle"},
		"compressed by xz":       {[]byte("\xfd7zXZ\x00…"), "compressed by xz"},
		"too large a executable": {[]byte("#!" + strings.Repeat("x", 81<<20)), "the executable has more than 83886080 bytes"},
	} {
		if _, err := install(t, d, m, c.data); muster.CodeOf(err) != muster.Invalid || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v (%s), want INVALID saying %q", name, err, muster.CodeOf(err), c.message)
		} else if wrong := regexp.MustCompile("image|raise the limit").FindString(err.Error()); wrong != "" {
			t.Errorf("%s: %v: it is no image, and nobody can raise the limit", name, err)
		}
	}
	if got := within(t, d, m, "cd /opt/muster; ls -A . svc-1; cat svc-1/tool"); got != ".:\nsvc-1\n\nsvc-1:\ntool\n#!before\n" {
		t.Errorf("left: %q", got)
	}
	for name, machine := range map[string]string{"absent": "absent", "a path": "../" + m} {
		if _, err := install(t, d, machine, []byte("#!")); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := groups("install-"); len(left) > 0 && strings.Contains(strings.Join(left, " "), h.prefix) {
		t.Errorf("left: %v", left)
	}
	remove(t, d)
}

// TestInstall_StaysInside has the machine's own root put links to the host's files in the way.
func TestInstall_StaysInside(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600")).Spec.Machine
	outside := t.TempDir()
	up := strings.Repeat("../", 20)
	const fresh = "rm -rf /opt/muster; mkdir -p /opt/muster; "
	for _, planted := range []string{
		"mkdir -p /opt; rm -rf /opt/muster; ln -s " + outside + " /opt/muster",
		"mkdir -p /opt; rm -rf /opt/muster; ln -s " + up + outside + " /opt/muster",
		fresh + "ln -s " + outside + " /opt/muster/svc-1",
		fresh + "ln -s " + outside + " /opt/muster/.new-svc-1",
		fresh + "echo x >/opt/muster/svc-1",
	} {
		within(t, d, m, planted)
		_, err := install(t, d, m, tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "planted", Mode: 0o644, Linkname: "x"}))
		t.Logf("%s: %v", planted, err)
		if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
			t.Fatalf("%s: outside there is %v, %v", planted, left, err)
		}
	}
	if got := within(t, d, m, "cat /opt/muster/svc-1/planted"); got != "x" {
		t.Errorf("the last one made %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := d.Install(ctx, driver.Artifact{Machine: m, Name: "svc-1", File: f}); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	remove(t, d)
}
