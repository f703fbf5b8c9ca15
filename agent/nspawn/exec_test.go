package nspawn_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

func shell(machine, script string) driver.ExecSpec {
	return driver.ExecSpec{Machine: machine, Command: []string{"sh", "-c", script}}
}

// commandsLeft returns the groups of commands that are left on a host.
func commandsLeft(h *host) []string {
	var left []string
	for _, dir := range groups("exec-") {
		if strings.Contains(dir, h.prefix) {
			left = append(left, dir)
		}
	}
	return left
}

func TestExec_Streams(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	for name, c := range map[string]struct {
		change         func(*driver.ExecSpec)
		script         string
		input          string
		exit           driver.Exit
		stdout, stderr string
	}{
		"output and status": {nil, "echo out; echo err >&2; exit 5", "", driver.Exit{Code: 5}, "out\n", "err\n"},
		"input":             {nil, "tr a-z A-Z", "hello\n", driver.Exit{}, "HELLO\n", ""},
		"input not read":    {nil, "exit 0", strings.Repeat("x", 1<<20), driver.Exit{}, "", ""},
		"much output":       {nil, "head -c 1000000 /dev/zero", "", driver.Exit{}, strings.Repeat("\x00", 1_000_000), ""},
		"a signal":          {nil, "kill -15 $$", "", driver.Exit{Code: 143, Signal: 15}, "", ""},
		"left behind":       {nil, "sleep 600 & sleep 600 & echo done", "", driver.Exit{}, "done\n", ""},
		"nobody":            {nil, "id -u; pwd; echo $A", "", driver.Exit{}, "65534\n/\n\n", ""},
		"somebody":          {func(s *driver.ExecSpec) { s.User, s.Dir, s.Env = "0", "/bin", map[string]string{"A": "b\nc"} }, `id -u; pwd; echo "$A"`, "", driver.Exit{}, "0\n/bin\nb\nc\n", ""},
		"no program": {
			func(s *driver.ExecSpec) { s.Command = []string{"nosuch"} }, "", "",
			driver.Exit{Code: 127, Failure: `there is no program "nosuch" in the instance's /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin: install it, or give its whole path`},
			"", "",
		},
		"no program by its path": {
			func(s *driver.ExecSpec) { s.Command = []string{"/no/such"} }, "", "",
			driver.Exit{Code: 127, Failure: `execute "/no/such": no such file or directory (or the interpreter or loader that it names)`},
			"", "",
		},
		"no program at all": {
			func(s *driver.ExecSpec) { s.Command = []string{"/etc"} }, "", "",
			driver.Exit{Code: 126, Failure: `execute "/etc": permission denied: is it a file, and may this user execute it?`},
			"", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := shell(m.Spec.Machine, c.script)
			if c.change != nil {
				c.change(&spec)
			}
			var stdout, stderr bytes.Buffer
			exit, err := d.Exec(t.Context(), spec, driver.Streams{Stdin: strings.NewReader(c.input), Stdout: &stdout, Stderr: &stderr})
			if err != nil || exit != c.exit {
				t.Errorf("%+v, %v, want %+v", exit, err, c.exit)
			}
			if stdout.String() != c.stdout || stderr.String() != c.stderr {
				t.Errorf("it wrote %.100q and %.100q, want %.100q and %.100q", stdout.String(), stderr.String(), c.stdout, c.stderr)
			}
		})
	}
	if _, err := d.Exec(t.Context(), shell("absent", "exit"), driver.Streams{}); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("in a machine that is not there: %v", err)
	}
	if _, err := d.Exec(t.Context(), driver.ExecSpec{Machine: m.Spec.Machine}, driver.Streams{}); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("without a command: %v", err)
	}
	if exit, err := d.Exec(t.Context(), shell(m.Spec.Machine, "exit 3"), driver.Streams{}); err != nil || exit.Code != 3 {
		t.Errorf("without streams: %+v, %v", exit, err)
	}
	if left := commandsLeft(h); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	remove(t, d)
}

// TestExec_HasNoMoreThanItsMachine has commands look at themselves.
func TestExec_HasNoMoreThanItsMachine(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	var out bytes.Buffer
	spec := shell(m.Spec.Machine, "cat /proc/self/status; ls /proc/self/fd; env")
	spec.User = "root"
	if exit, err := d.Exec(t.Context(), spec, driver.Streams{Stdout: &out}); err != nil || exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	for _, name := range []string{"CapBnd", "NoNewPrivs", "Seccomp"} {
		if want := name + ":\t" + field(t, m.PID, name) + "\n"; !strings.Contains(out.String(), want) {
			t.Errorf("it is not %q: %s", want, out.String())
		}
	}
	if !strings.Contains(out.String(), "CapEff:\t"+field(t, m.PID, "CapBnd")) {
		t.Errorf("root has other capabilities than %s: %s", field(t, m.PID, "CapBnd"), out.String())
	}
	// The standard ones, and that of the directory itself.
	if !regexp.MustCompile(`\n0\n1\n2\n3\n[A-Z]`).MatchString(out.String()) {
		t.Errorf("it has further descriptors: %q", out.String())
	}
	if exit, err := d.Exec(t.Context(), shell(m.Spec.Machine, "head -c 300m /dev/zero | tail"), driver.Streams{}); err != nil || exit.Code != 137 {
		t.Errorf("what uses 300 MB of 128 ended with %+v, %v, want 137", exit, err)
	}
	remove(t, d)
}

// TestExec_GivenUp ends commands that would go on, and asserts that nothing of them is left.
func TestExec_GivenUp(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	const script = "setsid sleep 611 & trap '' TERM HUP INT; echo ready; while :; do sleep 612; done"
	refused := errors.New("enough")
	for name, c := range map[string]struct {
		end  func(cancel func())
		want error
	}{
		"by its caller":   {func(cancel func()) { cancel() }, context.Canceled},
		"by its writer":   {func(func()) {}, refused},
		"with its helper": {func(func()) { kill(t, helperOf(t)) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			exit, err := d.Exec(ctx, shell(m.Spec.Machine, script), driver.Streams{Stdin: neverRead(t), Stdout: writer(func(text []byte) (int, error) {
				c.end(cancel)
				if errors.Is(c.want, refused) {
					return 0, refused
				}
				return len(text), nil
			})})
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%+v, %v, want %v", exit, err, c.want)
			}
			if left := append(commandsLeft(h), sleepers("611", "612")...); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Exec(ctx, shell(m.Spec.Machine, "exit 0"), driver.Streams{}); !errors.Is(err, context.Canceled) {
		t.Errorf("given up before: %v", err)
	}
	remove(t, d)
}

// TestExec_EndsWithItsMachine removes the machine under a command.
func TestExec_EndsWithItsMachine(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	exit, err := d.Exec(t.Context(), shell(m.Spec.Machine, "echo ready; sleep 600"), driver.Streams{Stdout: writer(func(text []byte) (int, error) {
		return len(text), d.Remove(t.Context(), m.Spec.Machine)
	})})
	if err != nil || exit.Signal != 9 {
		t.Errorf("%+v, %v, want it killed", exit, err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(text []byte) (int, error) { return w(text) }

// neverRead is an input on which nothing comes until it is closed.
func neverRead(t *testing.T) io.Reader {
	t.Helper()
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	return r
}

// helperOf returns this process's child that runs a command.
func helperOf(t *testing.T) int {
	t.Helper()
	paths, _ := filepath.Glob("/proc/self/task/*/children")
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		for _, child := range strings.Fields(string(text)) {
			line, _ := os.ReadFile("/proc/" + child + "/cmdline")
			if strings.Contains(string(line), "\x00shim\x00exec\x00") {
				pid, _ := strconv.Atoi(child)
				return pid
			}
		}
	}
	t.Error("no command has a helper")
	return 0
}

// sleepers returns the processes that sleep for so long.
func sleepers(seconds ...string) []string {
	var left []string
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		for _, s := range seconds {
			if string(text) == "sleep\x00"+s+"\x00" {
				left = append(left, path)
			}
		}
	}
	return left
}

func TestExec_Terminal(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "sleep 600"))
	typed, types := io.Pipe()
	shown, shows := io.Pipe()
	sizes := make(chan driver.Window)
	spec := shell(m.Spec.Machine, `stty size; tty; echo "$TERM"; trap 'stty size; exit 6' WINCH; read line; echo "got $line"; echo >/dev/tty again; while :; do sleep 0.05; done`)
	spec.Window = &driver.Window{Rows: 33, Columns: 101}
	var group sync.WaitGroup
	group.Go(func() {
		defer shows.Close()
		exit, err := d.Exec(t.Context(), spec, driver.Streams{Stdin: typed, Stdout: shows, Resize: sizes})
		if err != nil || exit.Code != 6 {
			t.Errorf("%+v, %v, want status 6", exit, err)
		}
	})
	lines := bufio.NewReader(shown)
	expect := func(want string) {
		t.Helper()
		line, err := lines.ReadString('\n')
		if err != nil || strings.TrimRight(line, "\r\n") != want {
			t.Errorf("it shows %q, %v, want %q", line, err, want)
		}
	}
	expect("33 101")
	expect("/dev/pts/0")
	expect("xterm")
	fmt.Fprint(types, "hello\r")
	expect("hello") // the echo
	expect("got hello")
	expect("again")
	select {
	case sizes <- driver.Window{Rows: 40, Columns: 120}:
	case <-time.After(grace):
		t.Error("the new size is not taken")
	}
	expect("40 120")
	group.Wait()
	if left := commandsLeft(h); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	remove(t, d)
}
