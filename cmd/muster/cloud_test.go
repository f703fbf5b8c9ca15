package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// cloud is a real server and a real agent in a network namespace of their own,
// with real instances. Everything is asked over the command line.
type cloud struct {
	t      *testing.T
	netns  string // also the prefix of the cgroups
	dir    string
	server *exec.Cmd
	agent  *exec.Cmd
	log    *os.File
	short  string   // the first part of the machines' names
	flags  []string // of the agent, more than all have
	env    []string // of server and agent, more than the test has
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test runs real instances: run it as root")
	}
	c := &cloud{t: t, netns: fmt.Sprintf("muster-e2e-%d", os.Getpid()), dir: t.TempDir()}
	var err error
	if c.log, err = os.Create(filepath.Join(t.TempDir(), "log")); err != nil {
		t.Fatal(err)
	}
	command(t, "ip", "netns", "add", c.netns)
	t.Cleanup(c.close)
	command(t, "ip", "-n", c.netns, "link", "set", "lo", "up")
	c.server = c.begin("server", "--data-dir", filepath.Join(c.dir, "server"))
	c.until("the server is ready", func() bool { _, err := c.try("node", "list"); return err == nil })
	c.muster("image", "build-minimal", "--state-dir", filepath.Join(c.dir, "agent"))
	c.startAgent()
	return c
}

func (c *cloud) startAgent() {
	c.t.Helper()
	c.agent = c.begin(append([]string{"agent", "--id", "e2e", "--state-dir", filepath.Join(c.dir, "agent"), "--cpus", "8", "--memory", "8192", "--cgroup-prefix", c.netns}, c.flags...)...)
	c.until("the node is HEALTHY", func() bool {
		out, err := c.try("node", "list")
		return err == nil && strings.Contains(out, "HEALTHY")
	})
}

// inside makes a command that runs in the cloud's network.
func (c *cloud) inside(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + c.netns}, args...)...)
}

func (c *cloud) begin(args ...string) *exec.Cmd {
	c.t.Helper()
	process := c.inside(append([]string{"muster"}, args...)...)
	process.Env = append(os.Environ(), c.env...)
	process.Stdout, process.Stderr = c.log, c.log
	if err := process.Start(); err != nil {
		c.t.Fatal(err)
	}
	return process
}

func (c *cloud) try(args ...string) (string, error) {
	process := c.inside(append([]string{"muster"}, args...)...)
	var out, said bytes.Buffer
	process.Stdout, process.Stderr = &out, &said
	if err := process.Run(); err != nil {
		return out.String(), fmt.Errorf("muster %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return out.String(), nil
}

func (c *cloud) muster(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// shown is what the tests look at of an instance.
type shown struct {
	ID, Status, StatusReason, Machine, Addr, Output string
	CPULimit                                        int `json:"cpuLimit"`
	MemLimitMB                                      int `json:"memLimitMb"`
	PID                                             *int
	ExitCode                                        *int
}

func (c *cloud) show(id string) (i shown) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(c.muster("instance", "show", id, "-o", "json")), &i); err != nil {
		c.t.Fatal(err)
	}
	return i
}

// launch launches and waits, by a subscription, until it runs.
func (c *cloud) launch(size string, payload ...string) shown {
	c.t.Helper()
	args := append([]string{"instance", "launch", "--type", size, "--wait", "-o", "json"}, dashes(payload)...)
	var i shown
	if err := json.Unmarshal([]byte(c.muster(args...)), &i); err != nil {
		c.t.Fatal(err)
	}
	if i.Status != "RUNNING" {
		c.t.Fatalf("launched %+v", i)
	}
	return i
}

func dashes(payload []string) []string {
	if len(payload) == 0 {
		return nil
	}
	return append([]string{"--"}, payload...)
}

// launchEnding launches what ends with an error and waits until it has.
func (c *cloud) launchEnding(payload ...string) shown {
	c.t.Helper()
	var out shown
	args := append([]string{"instance", "launch", "--type", "NANO", "-o", "json"}, dashes(payload)...)
	if err := json.Unmarshal([]byte(c.muster(args...)), &out); err != nil {
		c.t.Fatal(err)
	}
	c.until(out.ID+" ends", func() bool {
		out = c.show(out.ID)
		return out.Status == "FAILED" || out.Status == "STOPPED"
	})
	return out
}

func (c *cloud) until(what string, holds func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(c.log.Name())
			c.t.Fatalf("not within 30 s: %s; the log ends with\n%s", what, log[max(0, len(log)-4000):])
		}
	}
}

func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// close ends everything, also after a failure.
func (c *cloud) close() {
	if out, err := c.try("instance", "list", "-o", "json"); err == nil {
		var all []shown
		_ = json.Unmarshal([]byte(out), &all)
		for _, i := range all {
			_, _ = c.try("instance", "terminate", i.ID, "--wait", "--wait-timeout", "20s")
		}
	}
	for _, process := range []*exec.Cmd{c.agent, c.server} {
		if process != nil {
			_ = process.Process.Signal(os.Interrupt)
			_ = process.Wait()
		}
	}
	for what, n := range c.left() {
		if n > 0 {
			c.t.Errorf("left behind: %d %s", n, what)
		}
	}
	_ = exec.Command("ip", "netns", "del", c.netns).Run()
	c.log.Close()
}

// left counts what there is of the cloud's instances on the host.
func (c *cloud) left() map[string]int {
	left := map[string]int{}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	left["mounts"] = strings.Count(string(mounts), c.dir)
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		b, _ := os.ReadFile(path)
		if words := string(b); strings.Contains(words, c.dir) && strings.Contains(words, "nspawn") {
			left["processes"]++
		}
	}
	links, _ := exec.Command("ip", "-n", c.netns, "-br", "link", "show", "type", "veth").Output()
	left["veth interfaces"] = strings.Count(string(links), "\n")
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(path, c.netns+"/") && strings.Contains(filepath.Base(path), "-i-") {
			left["cgroups"]++
		}
		return nil
	})
	if spaces, err := os.ReadDir("/run/netns"); err == nil {
		for _, s := range spaces {
			if strings.HasPrefix(s.Name(), c.short+"-i-") {
				left["network namespaces"]++
			}
		}
	}
	return left
}

// spin measures the CPU that a machine uses over two seconds, in per cent of a
// core, and how often it was throttled.
func (c *cloud) spin(machine string) (percent float64, throttled int) {
	c.t.Helper()
	usage := func() (usec, periods int) {
		usec = c.cgroupValue("unified", machine, "cpu.stat", "usage_usec")
		return usec, c.cgroupValue("cpu", machine, "cpu.stat", "nr_throttled")
	}
	used, periods := usage()
	began := time.Now()
	time.Sleep(2 * time.Second) // the window that is measured
	usedAfter, periodsAfter := usage()
	return 100 * float64(usedAfter-used) / float64(time.Since(began).Microseconds()), periodsAfter - periods
}

// cgroupValue reads a key of a flat-keyed file of a machine's cgroup in a hierarchy.
func (c *cloud) cgroupValue(hierarchy, machine, file, key string) int {
	c.t.Helper()
	var found string
	_ = filepath.WalkDir(filepath.Join("/sys/fs/cgroup", hierarchy), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && filepath.Base(path) == machine {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	b, err := os.ReadFile(filepath.Join(found, file))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if words := strings.Fields(line); len(words) == 2 && words[0] == key {
			n, err := strconv.Atoi(words[1])
			if err != nil {
				c.t.Fatal(err)
			}
			return n
		}
	}
	c.t.Fatalf("%s of %s in %s lacks %s", file, machine, hierarchy, key)
	return 0
}

func TestCloud(t *testing.T) {
	c := newCloud(t)
	run := func(name string, test func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			c.t = t
			test(t)
		})
		c.t = t
	}
	run("every type runs", c.everyTypeRuns)
	run("the CPU quota binds", c.cpuBinds)
	run("the memory limit binds", c.memoryBinds)
	run("a payload that ends leaves status and output", c.payloadEnds)
	run("instances reach each other and the node", c.reach)
	run("the agent is killed and the instances run on", c.agentKilled)
	run("launches and terminations leave nothing", c.leaveNothing)
}

func (c *cloud) everyTypeRuns(t *testing.T) {
	for size, want := range map[string][2]int{"NANO": {25, 128}, "MICRO": {50, 256}, "SMALL": {100, 512}, "MEDIUM": {200, 1024}, "LARGE": {400, 2048}} {
		i := c.launch(size)
		c.short = strings.SplitN(i.Machine, "-", 2)[0]
		if i.CPULimit != want[0] || i.MemLimitMB != want[1] || i.PID == nil {
			t.Errorf("%s: %+v", size, i)
		}
		c.muster("instance", "terminate", i.ID, "--wait")
	}
}

func (c *cloud) cpuBinds(t *testing.T) {
	i := c.launch("NANO", "/bin/sh", "-c", "while :; do :; done")
	percent, throttled := c.spin(i.Machine)
	if percent < 20 || percent > 30 || throttled == 0 {
		t.Errorf("a spinning NANO uses %.1f %% of a core and was throttled %d times, want 20 to 30 and some", percent, throttled)
	}
	c.muster("instance", "terminate", i.ID, "--wait")
}

func (c *cloud) memoryBinds(t *testing.T) {
	i := c.launchEnding("/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1")
	if i.Status != "FAILED" || i.StatusReason != "out of memory" {
		t.Errorf("200 MB in a NANO: %+v", i)
	}
}

func (c *cloud) payloadEnds(t *testing.T) {
	i := c.launchEnding("/bin/sh", "-c", "echo the disk is on fire; exit 7")
	if i.Status != "FAILED" || i.ExitCode == nil || *i.ExitCode != 7 || i.StatusReason != "exited with status 7" || i.Output != "the disk is on fire\n" {
		t.Errorf("exit 7: %+v", i)
	}
	if i = c.launchEnding("/bin/true"); i.Status != "STOPPED" || i.ExitCode == nil || *i.ExitCode != 0 {
		t.Errorf("exit 0: %+v", i)
	}
	if i = c.launchEnding("/bin/nosuch"); i.Status != "FAILED" || !strings.Contains(i.StatusReason, "/bin/nosuch") {
		t.Errorf("a command that is not there: %+v", i)
	}
}

func (c *cloud) reach(t *testing.T) {
	web := c.launch("NANO", "/bin/httpd", "-f", "-p", "80", "-h", "/etc")
	fetch := fmt.Sprintf("printf 'GET /hostname HTTP/1.0\\r\\n\\r\\n' | nc -w 5 %s 80", web.Addr)
	from := c.launchEnding("/bin/sh", "-c", fetch+" && ping -c 1 -W 5 "+strings.TrimSuffix(web.Addr, lastPart(web.Addr))+"1")
	if from.Status != "STOPPED" || !strings.Contains(from.Output, "HTTP/1.") {
		t.Errorf("from one instance to another and to the node: %+v", from)
	}
	out, err := c.inside("busybox", "sh", "-c", fetch).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "HTTP/1.") {
		t.Errorf("from the node to the instance: %v: %s", err, out)
	}
}

func lastPart(addr string) string { return addr[strings.LastIndexByte(addr, '.')+1:] }

func (c *cloud) agentKilled(t *testing.T) {
	before := []shown{c.launch("NANO"), c.launch("MICRO")}
	if err := c.agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.agent.Wait()
	c.startAgent()
	for _, want := range before {
		got := c.show(want.ID)
		if got.Status != "RUNNING" || *got.PID != *want.PID || got.Machine != want.Machine {
			t.Errorf("after the agent's kill %+v, before %+v", got, want)
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", *want.PID)); err != nil {
			t.Errorf("the process of %s is gone: %v", want.ID, err)
		}
	}
	c.launch("NANO") // it takes orders again
}

func (c *cloud) leaveNothing(t *testing.T) {
	there := c.left() // of the instances that run: else the count below could not fail
	for _, what := range []string{"processes", "veth interfaces", "cgroups", "network namespaces"} {
		if there[what] == 0 {
			t.Errorf("no %s are counted though instances run", what)
		}
	}
	c.terminateAll()
	const launches, callers = 50, 5
	var wait sync.WaitGroup
	for range callers {
		wait.Go(func() {
			for range launches / callers {
				out, err := c.try("instance", "launch", "--type", "NANO", "--wait", "-o", "json")
				var i shown
				if err == nil {
					err = json.Unmarshal([]byte(out), &i)
				}
				if err == nil {
					_, err = c.try("instance", "terminate", i.ID, "--wait")
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	for what, n := range c.left() {
		if n > 0 {
			t.Errorf("%d %s are left after %d launches and terminations", n, what, launches)
		}
	}
}

func (c *cloud) terminateAll() {
	c.t.Helper()
	var all []shown
	if err := json.Unmarshal([]byte(c.muster("instance", "list", "-o", "json")), &all); err != nil {
		c.t.Fatal(err)
	}
	for _, i := range all {
		if i.Status != "TERMINATED" {
			c.muster("instance", "terminate", i.ID, "--wait")
		}
	}
}
