package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDev runs `muster dev` as `make run` does, three times over one directory,
// with real instances in a network namespace of its own.
func TestDev(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test runs real instances: run it as root")
	}
	d := &dev{netns: fmt.Sprintf("muster-dev-%d", os.Getpid()), dir: t.TempDir()}
	command(t, "ip", "netns", "add", d.netns)
	t.Cleanup(func() { command(t, "ip", "netns", "del", d.netns) })
	command(t, "ip", "-n", d.netns, "link", "set", "lo", "up")

	first := d.run(t)
	wantLines(t, first,
		`  image      minimal, made in `,
		`  agent      dev-test is HEALTHY: `,
		`  instance   i-1 "hello" launched: RUNNING at 10.213.0.2, NANO 25% of a core, 128 MiB (`,
		`  service    svc-1 "site" deployed: HEALTHY at http://127.0.0.1:30000/ (`,
		`  look       http://127.0.0.1:9000/playground/`,
		`  try        muster instance list`,
		`             muster watch`,
		`stopped: 1 instance left alone, data in `+d.dir,
	)
	// The page answers whether or not there is an agent.
	page := exec.Command("nsenter", "--net=/run/netns/"+d.netns, "busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:30000/")
	if out, err := page.Output(); err != nil || !strings.Contains(string(out), "<h1>It runs</h1>") {
		t.Errorf("the page is %q, %v", out, err)
	}
	second := d.run(t)
	wantLines(t, second,
		`  image      minimal`,
		`  instance   i-1 "hello" is still here: RUNNING at 10.213.0.2, NANO 25% of a core, 128 MiB (`,
		`  service    svc-1 "site" is still here: HEALTHY at http://127.0.0.1:30000/ (`,
	)
	third := d.run(t, "EPHEMERAL=1")
	wantLines(t, third, `Ctrl-C stops it. Every instance is terminated then.`, `stopped: 1 instance terminated, data in `+d.dir)
	machines, err := os.ReadDir(filepath.Join(d.dir, "agent", "machines"))
	if err != nil || len(machines) > 0 {
		t.Errorf("left behind: %v, %v", machines, err)
	}
}

// dev is a directory that `muster dev` runs on, and the network that it runs in.
type dev struct{ netns, dir string }

// run runs it until its story is told, interrupts it, and returns the story.
func (d *dev) run(t *testing.T, env ...string) string {
	t.Helper()
	process := exec.Command("nsenter", "--net=/run/netns/"+d.netns,
		"muster", "dev", "--launch", "--data-dir", d.dir, "--id", "dev-test", "--cgroup-prefix", d.netns)
	process.Env = append(os.Environ(), env...)
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	var story strings.Builder
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		story.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "Ctrl-C stops it.") {
			d.try(t, story.String())
			if err := process.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
		}
	}
	if err := process.Wait(); err != nil {
		t.Errorf("muster dev: %v\n%s", err, story.String())
	}
	return story.String()
}

// try runs the first command that the story tells of, as told, in another terminal: nobody types a key.
func (d *dev) try(t *testing.T, story string) {
	t.Helper()
	_, rest, _ := strings.Cut(story, "  try        ")
	line, _, _ := strings.Cut(rest, "\n")
	out, err := exec.Command("nsenter", "--net=/run/netns/"+d.netns, "sh", "-c", line).CombinedOutput()
	if err != nil || line == "" || !strings.Contains(string(out), "i-1   hello") {
		t.Errorf("%s: %v: %s", line, err, out)
	}
}

// wantLines wants a line that begins with each of these.
func wantLines(t *testing.T, text string, begins ...string) {
	t.Helper()
	for _, begin := range begins {
		if !strings.Contains("\n"+text, "\n"+begin) {
			t.Errorf("no line begins with %q in\n%s", begin, text)
		}
	}
}
