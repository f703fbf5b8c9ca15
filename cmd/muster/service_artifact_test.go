package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// shelf has files by their paths, and counts how often it is asked.
type shelf struct {
	files map[string][]byte
	asked atomic.Int64
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked.Add(1)
	content, ok := s.files[strings.TrimPrefix(r.URL.Path, "/")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(content)
}

// serve serves files on a host until the test ends, and returns the URL that they are below.
func (n *network) serve(t testing.TB, k int, files *shelf) string {
	t.Helper()
	listener := n.listen(t, k)
	server := &http.Server{Handler: files}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return "http://" + listener.Addr().String() + "/"
}

// listen listens on a host, at a port that is free.
func (n *network) listen(t testing.TB, k int) net.Listener {
	t.Helper()
	type listening struct {
		on  net.Listener
		err error
	}
	done := make(chan listening, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked, so that the thread ends in the host's network
		var l listening
		if l.err = enter(n.host(k)); l.err == nil {
			l.on, l.err = net.Listen("tcp4", addressOf(k)+":0")
		}
		done <- l
	}()
	l := <-done
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.on
}

// artifacts are what services are deployed from: a site for busybox, and a program that is built here.
func artifacts(t testing.TB) map[string][]byte {
	t.Helper()
	program := filepath.Join(t.TempDir(), "webapp")
	build := exec.Command("go", "build", "-o", program, "-ldflags=-s -w", "./testdata/webapp")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v: %s", err, out)
	}
	webapp, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		"webapp":          webapp,
		"site.tar.gz":     gzipped(t, tarred(t, entry{name: "pages/index.html", text: sitePage + "\n"}, entry{name: "bin/plugin", text: plugin, mode: 0o755})),
		"program.tar.zst": zstded(t, tarred(t, entry{name: "bin/webapp", text: string(webapp), mode: 0o755})),
	}
}

// plugin is a check that comes with a service's files: it is well where the service runs.
const plugin = `#!/bin/sh
[ -f pages/index.html ] && [ "$PORT" = 8080 ] && [ "$(id -u)" = 65534 ] || exit 2
`

// entry is one of an archive's.
type entry struct {
	name, text, link string
	mode             int64 // default 0644
	kind             byte  // default a file
	zeros            int64 // that follow the text
}

func tarred(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Mode: e.mode, Typeflag: e.kind, Size: int64(len(e.text)) + e.zeros}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, io.MultiReader(strings.NewReader(e.text), io.LimitReader(zeros{}, e.zeros))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func gzipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t testing.TB, content []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(content, nil)
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// evil is in each artifact that is to leave nothing behind.
const evil = "evil-41c8"

func evilArtifacts(t *testing.T) map[string][]byte {
	t.Helper()
	page := entry{name: "page", text: evil}
	return map[string][]byte{
		"good.tar":      tarred(t, page),
		"bomb.tar.zst":  zstded(t, tarred(t, page, entry{name: "bomb", zeros: 128 << 20})),
		"climbs.tar.gz": gzipped(t, tarred(t, page, entry{name: "../../../etc/passwd", text: evil})),
		"link.tar":      tarred(t, page, entry{name: "away", link: "../../../etc", kind: tar.TypeSymlink}, entry{name: "away/passwd", text: evil}),
		"absolute.tar":  tarred(t, page, entry{name: "away", link: "/etc/passwd", kind: tar.TypeSymlink}),
		"noise":         []byte(evil),
	}
}

// badOnesFail deploys what cannot be: each is FAILED, says why, and leaves nothing behind.
func (v *town) badOnesFail(t *testing.T) {
	for name, content := range evilArtifacts(t) {
		v.shelf.files[name] = content
	}
	n := v.kinds[0]
	from := func(name string) func(*muster.DeployServiceInput) {
		return func(in *muster.DeployServiceInput) { in.DeployURL = v.web + name }
	}
	runs := func(words ...string) func(*muster.DeployServiceInput) {
		return func(in *muster.DeployServiceInput) { in.Command = words }
	}
	cases := map[string]struct {
		change func(*muster.DeployServiceInput)
		why    []string
	}{
		"checksum": {func(in *muster.DeployServiceInput) {
			in.DeployURL, in.SHA256 = v.web+"good.tar", sumOf([]byte("another"))
		}, []string{sumOf(v.shelf.files["good.tar"]), sumOf([]byte("another")), "deploy it anew with the right checksum"}},
		"bomb":                 {from("bomb.tar.zst"), []string{`the entry "bomb"`, "more than 100 times its size"}},
		"climbs":               {from("climbs.tar.gz"), []string{`"../../../etc/passwd"`}},
		"link":                 {from("link.tar"), []string{`"away`, "link"}},
		"absolute":             {from("absolute.tar"), []string{`"away"`, `is a link to "/etc/passwd"`, "make it relative"}},
		"noise":                {from("noise"), []string{"is no artifact", "give a tar file"}},
		"missing":              {from("missing.tar"), []string{v.web + "missing.tar", "404", "restart the service"}},
		"unreachable":          {func(in *muster.DeployServiceInput) { in.DeployURL = "http://127.0.0.1:1/x" }, []string{"http://127.0.0.1:1/x", "connection refused", "restart the service"}},
		"a file":               {func(in *muster.DeployServiceInput) { in.DeployURL = "file:///etc/passwd" }, []string{"--allow-host-path /etc"}},
		"no command":           {runs("nosuch"), []string{`there is no program "nosuch" in the instance`}},
		"no user":              {func(in *muster.DeployServiceInput) { in.User = "ghost" }, []string{`there is no user "ghost" in the instance`}},
		"no dir":               {func(in *muster.DeployServiceInput) { in.Dir = "/nosuch" }, []string{`there is no directory "/nosuch" in the instance`}},
		"soon":                 {runs("sh", "-c", "sleep 0.05; echo last words; exit 3"), []string{"exited with status 3", "last words"}},
		"a port that is taken": {runs("httpd", "-f", "-p", "8080"), []string{"exited with status 1", "ddress already in use"}},
	}
	failed := map[string]*client.Service{}
	for name, c := range cases {
		in := muster.DeployServiceInput{Name: strings.ReplaceAll(name, " ", "-"), Command: []string{"sleep", "600"}, Restart: &muster.RestartPolicy{When: muster.RestartNever}}
		c.change(&in)
		failed[name] = v.deploy(n, in)
	}
	for name, c := range cases {
		s := v.become(failed[name], "FAILED", func(s *client.Service) bool { return s.Status == muster.ServiceFailed })
		for _, why := range c.why {
			if !strings.Contains(s.StatusReason, why) {
				t.Errorf("%s: it has failed because %q, want %q in it", name, s.StatusReason, why)
			}
		}
		if s.Health != muster.HealthBad || s.PID != nil || s.UnhealthyBecause == nil || s.UnhealthyBecause.Reason != s.StatusReason {
			t.Errorf("%s: it is %+v", name, s)
		}
		failed[name] = s
	}
	if s := failed["soon"]; s.ExitCode == nil || *s.ExitCode != 3 || v.written(s.ID) != "last words\n" {
		t.Errorf("what ended soon is %+v, and has written %q", s, v.written(s.ID))
	}
	v.nothingEvil(t)
	v.removeAll(slices.Collect(func(yield func(*client.Service) bool) {
		for _, s := range failed {
			if !yield(s) {
				return
			}
		}
	}))
}

// nothingEvil looks for what bad artifacts have in them, in all that the node keeps, the root of the instance
// among it.
func (v *town) nothingEvil(t *testing.T) {
	n := v.light[0]
	if found := inFiles(t, n.state, []planted{ofText("a bad artifact", evil)}); len(found) > 0 {
		t.Errorf("left: %q", found)
	}
	if found := inFiles(t, n.state, []planted{ofText("the site", sitePage)}); len(found) != 1 {
		t.Errorf("the site was found in %q, want one place: the search proves nothing", found)
	}
	out, err := n.within(*v.in[n].PID, "ls -A /opt/muster").CombinedOutput()
	var want []string
	for _, s := range v.running[n] {
		want = append(want, string(s.ID))
	}
	got := strings.Fields(string(out))
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the instance has %q of services, %v, want %q", got, err, want)
	}
}

// removeAll removes services, and waits until nothing of them is left.
func (v *town) removeAll(all []*client.Service) {
	v.t.Helper()
	for _, s := range all {
		if _, err := v.api.RemoveService(v.t.Context(), s.ID); err != nil {
			v.t.Fatal(err)
		}
	}
	for _, s := range all {
		v.become(s, "REMOVED", func(s *client.Service) bool { return s.Status == muster.ServiceRemoved })
	}
}
