package render_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli/render"
)

func TestOnce_LeavesAnUnchangedFileAlone(t *testing.T) {
	k := keep(t, line)
	marks := filepath.Join(k.dir, "marks")
	k.target.Check, k.target.Reload = "echo check >>"+marks, "echo reload >>"+marks
	k.good(3)
	past := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(k.path, past, past); err != nil {
		t.Fatal(err)
	}
	k.good(3)
	if info, err := os.Stat(k.path); err != nil || !info.ModTime().Equal(past) {
		t.Errorf("its time is %v: %v", info.ModTime(), err)
	}
	if text, _ := os.ReadFile(marks); string(text) != "check\nreload\n" {
		t.Errorf("the commands ran: %q", text)
	}
	k.good(4)
	if text, _ := os.ReadFile(marks); string(text) != "check\nreload\ncheck\nreload\n" {
		t.Errorf("the commands ran: %q", text)
	}
}

func TestOnce_KeepsModeOwnerAndLink(t *testing.T) {
	k := keep(t, line)
	real := filepath.Join(k.dir, "real.conf")
	if err := os.WriteFile(real, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(real, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real.conf", k.path); err != nil {
		t.Fatal(err)
	}
	k.good(2)
	link, err := os.Readlink(k.path)
	if err != nil || link != "real.conf" {
		t.Errorf("the link is %q, %v", link, err)
	}
	if info, err := os.Stat(real); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
}

func TestOnce_Guard(t *testing.T) {
	for _, test := range []struct {
		name        string
		before, now int
		change      func(*render.Target)
		words       []string // nil: it is rendered
	}{
		{"some to none", 10, 0, nil, []string{"where 10 were", "prod/http/web/*", "--allow-empty"}},
		{"some to none, allowed", 10, 0, func(t *render.Target) { t.AllowEmpty = true }, nil},
		{"one to none", 1, 0, nil, []string{"where 1 were"}},
		{"by 60 percent", 10, 4, nil, []string{"only 4 are left of 10", "50 %", "--max-shrink"}},
		{"by 60 percent, empty allowed", 10, 4, func(t *render.Target) { t.AllowEmpty = true }, []string{"only 4 are left of 10"}},
		{"by 60 percent, allowed", 10, 4, func(t *render.Target) { t.MaxShrink = 60 }, nil},
		{"by exactly half", 10, 5, nil, nil},
		{"by a tenth, one percent allowed", 10, 9, func(t *render.Target) { t.MaxShrink = 1 }, []string{"1 % may go"}},
		{"to one, any allowed", 10, 1, func(t *render.Target) { t.MaxShrink = 100 }, nil},
		{"grown", 2, 200, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := keep(t, line)
			want := k.good(test.before)
			if test.change != nil {
				test.change(&k.target)
			}
			if test.words == nil {
				k.good(test.now)
				return
			}
			k.source.set(entries(test.now)...)
			refused(t, k.once(), render.Refused, test.words...)
			if k.read() != want {
				t.Error("the last good file has changed")
			}
			k.good(test.before + 1) // and it goes on from there
		})
	}
}

func TestOnce_GuardsEachLookup(t *testing.T) {
	const two = `{{ range registrations "prod" "http" "web" "*" }}{{ .Address }}
{{ end }}{{ range registrations "prod" "http" "api" "*" OPTIONS }}{{ .Address }}
{{ end }}`
	for _, test := range []struct{ name, options, now string }{{"named", "", "api"}, {"optional", `"optional"`, ""}} {
		t.Run(test.name, func(t *testing.T) {
			k := keep(t, strings.Replace(two, "OPTIONS", test.options, 1))
			api := entry(99)
			api.Service, api.Key = "api", "api"
			k.source.set(append(entries(9), api)...)
			if err := k.once(); err != nil {
				t.Fatal(err)
			}
			k.source.set(entries(9)...)
			err := k.once()
			if test.now == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			refused(t, err, render.Refused, "prod/http/api/*")
		})
	}
}

// A template with a slip of the pen asks for something else, which nothing is registered for.
func TestOnce_GuardsAgainstATemplateThatFindsNothing(t *testing.T) {
	k := keep(t, line)
	want := k.good(5)
	k.target.Content = k.template(strings.Replace(line, "web", "wbe", 1))
	refused(t, k.once(), render.Refused, "5 entries", "--allow-empty")
	if k.read() != want {
		t.Error("the last good file has changed")
	}
}

// A fall back to a level with few entries is what levels are for.
func TestOnce_PreferredIsGuardedByAllLevels(t *testing.T) {
	k := keep(t, `{{ range registrations "prod" "http" "web" "*" "preferred" }}{{ .Address }}
{{ end }}`)
	all := entries(9)
	for _, e := range all[1:] {
		e.Priority = 10
	}
	k.source.set(all...)
	if err := k.once(); err != nil || strings.Contains(k.read(), "10.0.0.1\n") {
		t.Fatal(err, k.read())
	}
	stale := entries(9)
	for _, e := range stale[1:] {
		e.Priority, e.Status = 10, muster.EntryStale
	}
	k.source.set(stale...)
	if err := k.once(); err != nil || k.read() != "10.0.0.1\n" {
		t.Error(err, k.read())
	}
}

func TestOnce_KnowsNothingOfAFileThatIsThere(t *testing.T) {
	k := keep(t, line)
	if err := os.WriteFile(k.path, []byte("by hand\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused(t, k.once(), render.Refused, "nobody knows", "--allow-empty")
	if k.read() != "by hand\n" {
		t.Error("it was overwritten")
	}
	k.good(1)
}

func TestOnce_IncompleteAnswer(t *testing.T) {
	k := keep(t, line)
	k.source.incomplete = true
	k.good(1) // nothing is there yet: better than nothing
	want := k.read()
	k.source.set(entries(2)...)
	refused(t, k.once(), render.Refused, "as of 2026-11-30 01:02:03 UTC", "--allow-incomplete")
	if k.read() != want {
		t.Error("it was overwritten")
	}
	k.target.AllowIncomplete = true
	k.good(2)
}

func TestOnce_Commands(t *testing.T) {
	for _, test := range []struct {
		name          string
		check, reload string
		kind          render.Kind
		words         []string
	}{
		{"check of the place", "grep -c ^ $MUSTER_RENDER_FILE; echo no good >&2; exit 3", "", render.CheckFailed, []string{"exit status 3", "no good", "3\n"}},
		{"check of the new text", "grep -c ^ {}; exit 3", "", render.CheckFailed, []string{"exit status 3", "3"}},
		{"check that hangs", "echo begun; sleep 600 & sleep 600", "", render.CheckFailed, []string{"longer than 1s", "killed", "begun"}},
		{"no such check", "no-such-command-anywhere", "", render.CheckFailed, []string{"not found"}},
		{"reload", "true", "echo cannot; exit 1", render.ReloadFailed, []string{"exit status 1", "cannot"}},
		{"reload that hangs", "true", "sleep 600", render.ReloadFailed, []string{"longer than 1s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			k := keep(t, line)
			want := k.good(2)
			before, err := os.Stat(k.path)
			if err != nil {
				t.Fatal(err)
			}
			k.target.Check, k.target.Reload, k.target.Timeout = test.check, test.reload, time.Second
			k.source.set(entries(3)...)
			refused(t, k.once(), test.kind, test.words...)
			after, err := os.Stat(k.path)
			if k.read() != want || err != nil || !after.ModTime().Equal(before.ModTime()) {
				t.Errorf("the last good file has changed: %v", err)
			}
			k.target.Check, k.target.Reload = "", ""
			k.good(3)
		})
	}
}

// What a command started goes with it.
func TestOnce_KillsAllThatACommandStarted(t *testing.T) {
	k := keep(t, line)
	pid := filepath.Join(k.dir, "pid")
	k.target.Check, k.target.Timeout = "sleep 600 & echo $! >"+pid+"; wait", 500*time.Millisecond
	k.source.set(entries(1)...)
	refused(t, k.once(), render.CheckFailed, "killed")
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat")
		return err != nil || strings.Contains(string(stat), "(sleep) Z ") // nobody may have reaped it
	})
}

func TestOnce_FirstFileThatFailsIsNotLeft(t *testing.T) {
	k := keep(t, line)
	k.source.set(entries(1)...)
	for _, check := range []string{"false", "test -s " + k.path + " && false", "false {}"} {
		k.target.Check = check
		refused(t, k.once(), render.CheckFailed)
		if _, err := os.Stat(k.path); !os.IsNotExist(err) {
			t.Errorf("%s: the file is there: %v", check, err)
		}
	}
	k.target.Check, k.target.Reload = "test -s "+k.path, "false"
	refused(t, k.once(), render.ReloadFailed)
	if _, err := os.Stat(k.path); !os.IsNotExist(err) {
		t.Errorf("the file is there: %v", err)
	}
}

// Nothing of a command's may know the access key.
func TestOnce_CommandsHaveNoneOfOurVariables(t *testing.T) {
	t.Setenv("MUSTER_KEY", "secret")
	k := keep(t, line)
	k.target.Reload = "env >" + k.dir + "/env"
	k.good(1)
	text, err := os.ReadFile(k.dir + "/env")
	if err != nil || strings.Contains(string(text), "secret") || !strings.Contains(string(text), "MUSTER_RENDER_FILE="+k.path) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestOnce_RunsOneReloadForFilesThatShareIt(t *testing.T) {
	k := keep(t, line)
	k.source.set(entries(2)...)
	marks := filepath.Join(k.dir, "marks")
	k.target.Reload = "echo reload >>" + marks
	second := k.target
	second.Output = filepath.Join(k.dir, "second.conf")
	third := k.target
	third.Output, third.Check = filepath.Join(k.dir, "third.conf"), "false"
	r, err := render.New(k.source, []render.Target{third, k.target, second}, k.opts)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, r.Once(t.Context()), render.CheckFailed, "third.conf")
	if text, _ := os.ReadFile(marks); string(text) != "reload\n" {
		t.Errorf("the reloads: %q", text)
	}
	if text, err := os.ReadFile(second.Output); err != nil || string(text) != k.read() {
		t.Errorf("%s, %v", text, err)
	}
}

func TestOnce_IsAloneWithItsFile(t *testing.T) {
	k := keep(t, line)
	k.source.set(entries(1)...)
	started := filepath.Join(k.dir, "started")
	first := *k
	first.target.Reload = "touch " + started + "; while [ -e " + started + " ]; do sleep 0.05; done"
	done := make(chan error)
	go func() { done <- first.once() }()
	waitFor(t, func() bool { _, err := os.Stat(started); return err == nil })
	refused(t, k.once(), render.WriteFailed, "another muster render")
	if err := os.Remove(started); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A command that is just being started, by whomever in this process, has all its files for a moment; the next run
// need not wait for it.
func TestOnce_LetsGoOfItsFile(t *testing.T) {
	k := keep(t, line)
	k.source.set(entries(1)...)
	started := filepath.Join(k.dir, "started")
	first := *k
	first.target.Reload = "touch " + started + "; while [ -e " + started + " ]; do sleep 0.05; done"
	done := make(chan error)
	go func() { done <- first.once() }()
	waitFor(t, func() bool { _, err := os.Stat(started); return err == nil })
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	copied := 0
	for _, path := range fds {
		if to, err := os.Readlink(path); err != nil || to != filepath.Join(k.dir, ".out.conf.muster") {
			continue
		}
		fd, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			t.Fatal(err)
		}
		if fd, err = syscall.Dup(fd); err != nil {
			t.Fatal(err)
		}
		copied++
		defer func() { _ = syscall.Close(fd) }()
	}
	if err := os.Remove(started); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || copied == 0 {
		t.Fatal(copied, err)
	}
	k.good(2)
}

// waitFor waits for what a process does.
func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come about")
		}
	}
}

func TestOnce_MetricsTellWhatBecameOfIt(t *testing.T) {
	k := keep(t, line)
	k.opts.MetricsFile = filepath.Join(k.dir, "muster.prom")
	k.good(10)
	metric := func(want string) {
		t.Helper()
		text, err := os.ReadFile(k.opts.MetricsFile)
		if err != nil || !strings.Contains(string(text), strings.ReplaceAll(want, "FILE", fmt.Sprintf("file=%q", k.path))) {
			t.Errorf("%s\nhas no %s: %v", text, want, err)
		}
	}
	metric(`muster_render_entries{FILE} 10`)
	metric(`muster_render_failing{FILE} 0`)
	metric(`muster_render_renders_total{FILE,outcome="written"} 1`)
	k.source.set()
	refused(t, k.once(), render.Refused)
	metric(`muster_render_entries{FILE} 10`)
	metric(`muster_render_failing{FILE} 1`)
	metric(`muster_render_renders_total{FILE,outcome="refused"} 1`)
	k.good(10)
	metric(`muster_render_renders_total{FILE,outcome="unchanged"} 1`)
}

func TestDryRun_ChangesNothing(t *testing.T) {
	k := keep(t, line)
	want := k.good(2)
	k.source.set(entries(3)...)
	k.target.Check, k.target.Reload = "touch "+k.dir+"/ran", "touch "+k.dir+"/ran"
	var out strings.Builder
	if err := k.renderer().DryRun(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\n+10.0.0.3:8080\n") || !strings.Contains(out.String(), "\n 10.0.0.2:8080\n") {
		t.Errorf("the diff is:\n%s", out.String())
	}
	if _, err := os.Stat(k.dir + "/ran"); k.read() != want || err == nil {
		t.Error("it did something")
	}
	k.source.set()
	refused(t, k.renderer().DryRun(t.Context(), &out), render.Refused)
	k.source.set(entries(2)...)
	out.Reset()
	if err := k.renderer().DryRun(t.Context(), &out); err != nil || out.String() != "" {
		t.Errorf("for no change: %q, %v", out.String(), err)
	}
}

func TestNew_RefusesBadTargets(t *testing.T) {
	content := func(*render.Answer) ([]byte, render.Calls, error) { return nil, nil, nil }
	good := render.Target{Output: "x", Content: content}
	for name, targets := range map[string][]render.Target{
		"none": {}, "no output": {{Content: content}}, "no template": {{Output: "x"}}, "twice": {good, good},
		"shrink": {{Output: "x", Content: content, MaxShrink: 101}}, "timeout": {{Output: "x", Content: content, Timeout: -1}},
	} {
		if _, err := render.New(&source{}, targets, render.Options{}); muster.CodeOf(err) != muster.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
