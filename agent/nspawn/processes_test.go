package nspawn_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn"
)

// processSpec is a process with a shell command, named svc-1.
func processSpec(machine, script string) driver.ProcessSpec {
	return driver.ProcessSpec{ProcessRef: driver.ProcessRef{Machine: machine, Name: "svc-1"}, Command: []string{"sh", "-c", script}}
}

func startProcess(t *testing.T, d *nspawn.Driver, spec driver.ProcessSpec) driver.ProcessStatus {
	t.Helper()
	status, err := d.StartProcess(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return status
}

func awaitProcess(t *testing.T, d *nspawn.Driver, ref driver.ProcessRef, ok func(driver.ProcessStatus) bool) driver.ProcessStatus {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		all, err := d.ListProcesses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(p driver.ProcessStatus) bool { return p.Spec.ProcessRef == ref })
		if i >= 0 && ok(all[i]) {
			return all[i]
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come to the state that is waited for: %+v", ref, all)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func ended(p driver.ProcessStatus) bool { return p.State == driver.Exited }

// logged returns what a process has written.
func logged(t *testing.T, d *nspawn.Driver, ref driver.ProcessRef) string {
	t.Helper()
	part, err := d.ReadProcessLog(t.Context(), ref, driver.LogRead{Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return string(part.Data)
}

// field reads one of a process's status.
func field(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("process %d has no %s", pid, name)
	return ""
}

// TestProcess_HasNoMoreThanItsMachine compares a process with the machine's process 1, as whom ever it runs.
func TestProcess_HasNoMoreThanItsMachine(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	for user, uid := range map[string]string{"": "65534", "0": "0", "1234:5678": "1234"} {
		spec := processSpec(m.Spec.Machine, "echo ready; exec sleep 600")
		spec.User = user
		p := startProcess(t, d, spec)
		for _, name := range []string{"CapBnd", "NoNewPrivs", "Seccomp"} {
			if got, want := field(t, p.PID, name), field(t, m.PID, name); got != want {
				t.Errorf("as %q its %s is %s, that of the machine %s", user, name, got, want)
			}
		}
		if got := field(t, p.PID, "NoNewPrivs"); got != "1" {
			t.Errorf("as %q its NoNewPrivs is %s", user, got)
		}
		if got := strings.Fields(field(t, p.PID, "Uid")); !slices.Equal(got, []string{uid, uid, uid, uid}) {
			t.Errorf("as %q it has the users %v", user, got)
		}
		wantCaps := "0000000000000000"
		if uid == "0" {
			wantCaps = field(t, m.PID, "CapBnd")
		}
		if got := field(t, p.PID, "CapEff"); got != wantCaps {
			t.Errorf("as %q its capabilities are %s, want %s", user, got, wantCaps)
		}
		for _, kind := range []string{"mnt", "net", "uts", "ipc", "pid", "cgroup"} {
			got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.PID, kind))
			want, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", m.PID, kind))
			if err != nil || err2 != nil || got != want {
				t.Errorf("its namespace is %s, that of the machine %s (%v, %v)", got, want, err, err2)
			}
		}
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
		if n := strings.Count(string(groups), m.Spec.Machine); err != nil || n == 0 || n < strings.Count(string(groups), "process-svc-1") {
			t.Errorf("its groups are %s, %v", groups, err)
		}
		if _, err := d.StartProcess(t.Context(), spec); !errors.Is(err, driver.ErrExists) {
			t.Errorf("started twice: %v, want ErrExists", err)
		}
		stopped, err := d.StopProcess(t.Context(), spec.ProcessRef, driver.Stop{Grace: grace})
		if err != nil || stopped.State != driver.Exited || stopped.Reason != "stopped" || stopped.PID != 0 {
			t.Errorf("stopped: %+v, %v", stopped, err)
		}
		if err := d.RemoveProcess(t.Context(), spec.ProcessRef); err != nil {
			t.Error(err)
		}
	}
	remove(t, d)
}

// TestProcess_LimitsBind has processes use more than their machine may.
func TestProcess_LimitsBind(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	spec := processSpec(m.Spec.Machine, "head -c 300m /dev/zero | tail")
	startProcess(t, d, spec)
	p := awaitProcess(t, d, spec.ProcessRef, ended)
	if !p.OOM {
		t.Errorf("what uses 300 MB of 128 ended as %+v, want it out of memory", p)
	}
	remove(t, d)
}

func TestProcess_Ends(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "echo 'web:x:77:88::/srv:/bin/sh' >>/etc/passwd; echo 'data:x:99:web' >>/etc/group; mkdir -p /srv; httpd -p 127.0.0.1:7070; httpd -p '[::]:7071'; echo ready; sleep 600"))
	await(t, d, m.Spec.Machine, func(driver.Status) bool { return strings.Contains(h.console(m.Spec.Machine), "ready") })
	code := func(n int) *int { return &n }
	for name, c := range map[string]struct {
		change func(*driver.ProcessSpec)
		code   *int
		reason string
		output string
	}{
		"at once":             {func(s *driver.ProcessSpec) { s.Command[2] = "echo out; echo err >&2; exit 7" }, code(7), "exited with status 7", "out\nerr\n"},
		"soon":                {func(s *driver.ProcessSpec) { s.Command[2] = "sleep 0.05; echo late; exit 3" }, code(3), "exited with status 3", "late\n"},
		"by a signal":         {func(s *driver.ProcessSpec) { s.Command[2] = "kill -9 $$" }, nil, "killed by signal 9", ""},
		"with children":       {func(s *driver.ProcessSpec) { s.Command[2] = "sleep 600 & sleep 600 & echo two" }, code(0), "exited with status 0", "two\n"},
		"no such program":     {func(s *driver.ProcessSpec) { s.Command = []string{"nosuch"} }, nil, `could not start: there is no program "nosuch" in the instance's `, ""},
		"no such path":        {func(s *driver.ProcessSpec) { s.Command = []string{"/bin/nosuch"} }, nil, `could not start: execute "/bin/nosuch": no such file or directory`, ""},
		"no program":          {func(s *driver.ProcessSpec) { s.Command = []string{"/etc/passwd"} }, nil, `could not start: execute "/etc/passwd": permission denied`, ""},
		"no such user":        {func(s *driver.ProcessSpec) { s.User = "ghost" }, nil, `could not start: there is no user "ghost" in the instance`, ""},
		"no such group":       {func(s *driver.ProcessSpec) { s.User = "web:ghosts" }, nil, `could not start: there is no group "ghosts" in the instance`, ""},
		"no such directory":   {func(s *driver.ProcessSpec) { s.Dir = "/nosuch" }, nil, `could not start: there is no directory "/nosuch" in the instance: make it there, or name another one`, ""},
		"a port of another":   {func(s *driver.ProcessSpec) { s.Port = 7070 }, nil, "could not start: port 7070: another process of the instance listens at it already", ""},
		"by IPv6":             {func(s *driver.ProcessSpec) { s.Port = 7071 }, nil, "could not start: port 7071: another process of the instance listens at it already", ""},
		"a port of nobody":    {func(s *driver.ProcessSpec) { s.Port, s.Command[2] = 7072, "echo free" }, code(0), "exited with status 0", "free\n"},
		"a user by name":      {func(s *driver.ProcessSpec) { s.User, s.Command[2] = "web", "id -u; id -g; id -G; echo $HOME $USER" }, code(0), "exited with status 0", "77\n88\n88 99\n/srv web\n"},
		"a user with a group": {func(s *driver.ProcessSpec) { s.User, s.Command[2] = "web:data", "id -u; id -g" }, code(0), "exited with status 0", "77\n99\n"},
		"a directory":         {func(s *driver.ProcessSpec) { s.Dir, s.Command[2] = "/srv", "pwd" }, code(0), "exited with status 0", "/srv\n"},
		"variables": {func(s *driver.ProcessSpec) {
			s.Env, s.Command[2] = map[string]string{"A": "line\nbreak", "PATH": "/bin"}, `echo "$A $PATH"`
		}, code(0), "exited with status 0", "line\nbreak /bin\n"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := processSpec(m.Spec.Machine, "")
			spec.Name = "svc-" + strings.ReplaceAll(name, " ", "-")
			c.change(&spec)
			startProcess(t, d, spec)
			p := awaitProcess(t, d, spec.ProcessRef, ended)
			if (p.ExitCode == nil) != (c.code == nil) || c.code != nil && *p.ExitCode != *c.code {
				t.Errorf("its status is %v, want %v", p.ExitCode, c.code)
			}
			if p.Cause != driver.Itself || !strings.HasPrefix(p.Reason, c.reason) || p.Output != c.output {
				t.Errorf("it ended as %q with %q, want %q with %q", p.Reason, p.Output, c.reason, c.output)
			}
			if err := d.RemoveProcess(t.Context(), spec.ProcessRef); err != nil {
				t.Error(err)
			}
		})
	}
	if left := groups("process-"); len(left) > 0 && slices.ContainsFunc(left, func(dir string) bool { return strings.Contains(dir, h.prefix) }) {
		t.Errorf("groups of processes are left: %v", left)
	}
	remove(t, d)
}

func TestProcess_Refused(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	stopped := h.spec("b", "exit 0")
	if _, err := d.Launch(t.Context(), stopped); err != nil {
		t.Fatal(err)
	}
	await(t, d, stopped.Machine, exited)
	for name, c := range map[string]struct {
		change func(*driver.ProcessSpec)
		code   muster.Code
	}{
		"no machine":         {func(s *driver.ProcessSpec) { s.Machine = "absent" }, muster.Internal},
		"a path":             {func(s *driver.ProcessSpec) { s.Machine = "../machines/" + s.Machine }, muster.Internal},
		"a stopped machine":  {func(s *driver.ProcessSpec) { s.Machine = stopped.Machine }, muster.Conflict},
		"no name":            {func(s *driver.ProcessSpec) { s.Name = "" }, muster.Invalid},
		"a path for a name":  {func(s *driver.ProcessSpec) { s.Name = "../x" }, muster.Invalid},
		"no command":         {func(s *driver.ProcessSpec) { s.Command = nil }, muster.Invalid},
		"a NUL":              {func(s *driver.ProcessSpec) { s.Env = map[string]string{"A": "a\x00b"} }, muster.Invalid},
		"a variable":         {func(s *driver.ProcessSpec) { s.Env = map[string]string{"A=B": ""} }, muster.Invalid},
		"a relative path":    {func(s *driver.ProcessSpec) { s.Dir = "etc" }, muster.Invalid},
		"a path for a user":  {func(s *driver.ProcessSpec) { s.User = "a/b" }, muster.Invalid},
		"a break for a user": {func(s *driver.ProcessSpec) { s.User = "a\nb" }, muster.Invalid},
	} {
		spec := processSpec(m.Spec.Machine, "sleep 600")
		c.change(&spec)
		_, err := d.StartProcess(t.Context(), spec)
		if muster.CodeOf(err) != c.code || c.code == muster.Internal && !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
	if all, err := d.ListProcesses(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("processes %+v, %v, want none", all, err)
	}
	if _, err := d.StopProcess(t.Context(), driver.ProcessRef{Machine: m.Spec.Machine, Name: "absent"}, driver.Stop{}); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("stop of what is not there: %v", err)
	}
	remove(t, d)
}

// TestProcess_Secret looks for a value of the environment wherever it could have been written.
func TestProcess_Secret(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	secret, control := "s3cr3t-"+h.prefix, "c0ntr0l-"+h.prefix
	spec := processSpec(m.Spec.Machine, "echo ready; exec sleep 600 # "+control)
	spec.Command = append(spec.Command, control)
	spec.Env = map[string]string{"TOKEN": secret}
	p := startProcess(t, d, spec)
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
	if err != nil || !strings.Contains(string(environ), "TOKEN="+secret) {
		t.Errorf("the process has not got it: %q, %v", environ, err)
	}
	found := map[string][]string{}
	look := func(path string) {
		text, _ := os.ReadFile(path)
		for _, word := range []string{secret, control} {
			if strings.Contains(string(text), word) {
				found[word] = append(found[word], path)
			}
		}
	}
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			if path != fmt.Sprintf("/proc/%d/environ", p.PID) {
				look(path)
			}
		}
	}
	_ = filepath.WalkDir(h.state, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			look(path)
		}
		return nil
	})
	if len(found[secret]) > 0 || len(found[control]) == 0 {
		t.Errorf("the secret is in %v; the control is in %v", found[secret], found[control])
	}
	remove(t, d)
}
