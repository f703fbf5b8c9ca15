package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const counting = `trap 'echo the last words; exit 0' TERM; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.05; done`

// TestLogs follows one log through everything that can happen to it.
func TestLogs(t *testing.T) {
	c := newCloud(t)
	i := c.launch("NANO", "/bin/sh", "-c", counting)
	c.short = strings.SplitN(i.Machine, "-", 2)[0]
	f := c.followLogs(i.ID)
	c.until("it is followed", func() bool { return f.lines() > 20 })
	if got := strings.Split(c.muster("logs", "--tail", "2", i.ID), "\n"); len(got) != 3 || !strings.HasPrefix(got[0], "line ") {
		t.Errorf("the last two lines are %q", got)
	}
	if got := c.muster("instance", "logs", i.ID); !strings.HasPrefix(got, "line 1\nline 2\n") {
		t.Errorf("it begins with %.40q", got)
	}

	if err := c.agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.agent.Wait()
	_, err := c.try("logs", i.ID)
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 6 || !strings.Contains(err.Error(), "node e2e is away") {
		t.Errorf("with its node away: %v", err)
	}
	c.startAgent()
	f.goesOn("after the agent was away")

	_ = c.server.Process.Signal(os.Interrupt)
	_ = c.server.Wait()
	c.server = c.begin("server", "--data-dir", filepath.Join(c.dir, "server"))
	f.goesOn("after the server was restarted")

	c.muster("instance", "stop", i.ID, "--wait")
	c.until("the last words come", func() bool { return strings.HasSuffix(f.text(), "the last words\n") })
	if all := c.muster("logs", i.ID); all != f.text() {
		t.Errorf("what has ended is read as %d bytes, followed as %d", len(all), len(f.text()))
	}
	c.muster("instance", "start", i.ID, "--wait")
	f.goesOn("after it was started again")
	c.muster("instance", "terminate", i.ID, "--wait")
	if err := f.process.Wait(); err != nil {
		t.Errorf("the follower ended with %v: %s", err, f.said.String())
	}
	f.check(t)
	_, err = c.try("logs", i.ID)
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 {
		t.Errorf("after it was terminated: %v", err)
	}
}

// follower is `muster logs --follow` at work.
type follower struct {
	c       *cloud
	process *exec.Cmd
	out     string // the file that it writes to
	said    bytes.Buffer
}

func (c *cloud) followLogs(id string) *follower {
	c.t.Helper()
	out, err := os.Create(filepath.Join(c.t.TempDir(), "out"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer out.Close()
	f := &follower{c: c, process: c.inside("muster", "logs", "--follow", id), out: out.Name()}
	f.process.Stdout, f.process.Stderr = out, &f.said
	if err := f.process.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = f.process.Process.Kill() })
	return f
}

func (f *follower) text() string {
	b, _ := os.ReadFile(f.out)
	return string(b)
}

func (f *follower) lines() int { return strings.Count(f.text(), "\n") }

func (f *follower) goesOn(when string) {
	f.c.t.Helper()
	before := f.lines()
	f.c.until("it goes on "+when, func() bool { return f.lines() > before+10 })
}

// check asserts that no line is missing and none came twice.
func (f *follower) check(t *testing.T) {
	t.Helper()
	want := 1
	for n, line := range strings.Split(strings.TrimSuffix(f.text(), "\n"), "\n") {
		switch {
		case line == "the last words":
			want = 1
		case line != fmt.Sprint("line ", want):
			t.Fatalf("line %d is %q, want line %d", n+1, line, want)
		default:
			want++
		}
	}
}
