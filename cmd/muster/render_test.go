package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
)

// renderSeed makes the moments of TestRender_KilledAtAnyMoment the same each time.
const renderSeed = 20261130

// rendered is a file that real processes render from a real server.
type rendered struct {
	t    *testing.T
	s    *server
	dir  string
	path string
}

func newRendered(t *testing.T) *rendered {
	t.Helper()
	s := newServer(t, "--registration-publish", "noop")
	s.start()
	r := &rendered{t: t, s: s, dir: t.TempDir()}
	r.path = filepath.Join(r.dir, "out.conf")
	text := `{{ range registrations "prod" "http" "web" "*" }}{{ .HostPort }}
{{ end }}# end
`
	if err := os.WriteFile(r.dir+"/template", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// add registers the nth entry.
func (r *rendered) add(n int) {
	r.t.Helper()
	port := 80
	in := muster.RegisterInput{Cluster: "prod", Protocol: "http", Service: "web", Address: fmt.Sprintf("10.0.0.%d", n), Port: &port}
	if _, err := r.s.client().Register(r.t.Context(), in); err != nil {
		r.t.Fatal(err)
	}
}

// text is what is rendered of the first n entries.
func text(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "10.0.0.%d:80\n", i+1)
	}
	return b.String() + "# end\n"
}

func (r *rendered) read() string {
	r.t.Helper()
	text, err := os.ReadFile(r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

// command is muster render; without says that it may not mount.
func (r *rendered) command(mayMount bool, check, reload string) *exec.Cmd {
	args := []string{"muster", "render", "--server", r.s.url, "-t", r.dir + "/template", "-o", r.path, "--check", check, "--reload", reload}
	if !mayMount {
		args = append([]string{"setpriv", "--bounding-set=-sys_admin", "--"}, args...)
	}
	c := exec.Command(args[0], args[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return c
}

// once renders to the end and wants an exit code.
func (r *rendered) once(code int, mayMount bool, check, reload string) (said string) {
	r.t.Helper()
	c := r.command(mayMount, check, reload)
	out, err := c.CombinedOutput()
	if c.ProcessState == nil || c.ProcessState.ExitCode() != code {
		r.t.Fatalf("it ended with %v, want %d:\n%s", err, code, out)
	}
	return string(out)
}

// killAt begins to render, and kills muster alone, without a warning, once a file is there.
func (r *rendered) killAt(mayMount bool, check, reload, mark string) {
	r.t.Helper()
	c := r.command(mayMount, check, reload)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		r.t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err := os.Stat(mark); err == nil {
			break
		}
		if time.Now().After(deadline) {
			r.t.Errorf("it never came to %s", mark)
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := c.Process.Kill(); err != nil {
		r.t.Error(err)
	}
	_ = c.Wait()
	if err := os.Remove(mark); err != nil {
		r.t.Errorf("%v\n%s", err, out.String())
	}
}

// TestRender_KilledInTheMiddle kills muster where a new text is half through.
func TestRender_KilledInTheMiddle(t *testing.T) {
	for _, test := range []struct {
		name     string
		mayMount bool
		check    string // MARK is the file that tells of the moment
		reload   string
		left     int // entries in the file then
	}{
		{"a check of the new text", true, ": {}; touch MARK; while [ -e MARK ]; do sleep 0.05; done", "true", 2},
		{"a check that finds it in place", true, "touch MARK; while [ -e MARK ]; do sleep 0.05; done", "true", 2},
		{"a check in place for everybody", false, "touch MARK; while [ -e MARK ]; do sleep 0.05; done", "true", 3}, // the next run puts it back
		{"a reload", true, "true", "touch MARK; while [ -e MARK ]; do sleep 0.05; done", 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRendered(t)
			r.add(1)
			r.add(2)
			r.once(0, test.mayMount, "true", "true")
			r.add(3)
			mark := r.dir + "/mark"
			r.killAt(test.mayMount, strings.ReplaceAll(test.check, "MARK", mark), strings.ReplaceAll(test.reload, "MARK", mark), mark)
			if got := r.read(); got != text(test.left) {
				t.Errorf("it left:\n%s", got)
			}
			said := r.once(10, test.mayMount, "false", "true")
			if got := r.read(); got != text(2) {
				t.Errorf("what the check refuses is in place:\n%s", got)
			}
			if repaired := strings.Contains(said, "an earlier run did not finish"); repaired != (test.left == 3) {
				t.Errorf("it said: %s", said)
			}
			r.once(0, test.mayMount, "true", "echo >>"+r.dir+"/reloads")
			if got := r.read(); got != text(3) {
				t.Errorf("at last there is:\n%s", got)
			}
			if _, err := os.Stat(r.dir + "/reloads"); err != nil {
				t.Errorf("it was not reloaded: %v", err)
			}
		})
	}
}

// TestRender_OwesAReload kills it in a reload, of which nobody knows how far it came: the
// next run does it again although the text is the same.
func TestRender_OwesAReload(t *testing.T) {
	r := newRendered(t)
	r.add(1)
	mark := r.dir + "/mark"
	r.killAt(true, "true", "touch "+mark+"; while [ -e "+mark+" ]; do sleep 0.05; done", mark)
	for range 2 {
		r.once(0, true, "true", "echo >>"+r.dir+"/reloads")
	}
	if reloads, err := os.ReadFile(r.dir + "/reloads"); string(reloads) != "\n" || r.read() != text(1) {
		t.Errorf("%d reloads, %v, of:\n%s", len(reloads), err, r.read())
	}
}

// TestRender_KilledAtAnyMoment kills it at seeded moments: the file is whole always, and
// the next run that ends finds it as it should be.
func TestRender_KilledAtAnyMoment(t *testing.T) {
	r := newRendered(t)
	r.add(1)
	r.once(0, true, "true", "true")
	moments := rand.New(rand.NewPCG(renderSeed, renderSeed))
	for n := 2; n < 30; n++ {
		r.add(n)
		c := r.command(n%2 == 0, "tail -n 1 "+r.path+" | grep -qx '# end'", "true")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(moments.IntN(150)) * time.Millisecond) // the moment is what the test is about
		_ = c.Process.Kill()
		_ = c.Wait()
		got := r.read()
		whole := false
		for k := 1; k <= n; k++ {
			whole = whole || got == text(k)
		}
		if !whole {
			t.Fatalf("after kill %d there is:\n%s", n, got)
		}
	}
	r.once(0, true, "true", "true")
	if got := r.read(); got != text(29) {
		t.Errorf("at last there is:\n%s", got)
	}
	left, err := os.ReadDir(r.dir + "/.out.conf.muster")
	if err != nil || len(left) != 1 {
		t.Errorf("beside it are %v, %v", left, err)
	}
}

// TestRender_ShowsTheNewTextToItsCheckAlone reads the file while a check finds the new text
// in its place.
func TestRender_ShowsTheNewTextToItsCheckAlone(t *testing.T) {
	r := newRendered(t)
	r.add(1)
	r.once(0, true, "true", "true")
	r.add(2)
	seen := r.dir + "/seen"
	c := r.command(true, "cp "+r.path+" "+seen+".new; mv "+seen+".new "+seen+"; while [ -e "+seen+" ]; do sleep 0.05; done", "true")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var found []byte
	for deadline := time.Now().Add(20 * time.Second); found == nil; time.Sleep(5 * time.Millisecond) {
		found, _ = os.ReadFile(seen)
		if time.Now().After(deadline) {
			t.Error("the check never ran")
			break
		}
	}
	if got := r.read(); string(found) != text(2) || got != text(1) {
		t.Errorf("the check saw:\n%s\nand everybody else:\n%s", found, got)
	}
	_ = os.Remove(seen)
	if err := c.Wait(); err != nil || r.read() != text(2) {
		t.Errorf("it ended with %v and left:\n%s", err, r.read())
	}
}
