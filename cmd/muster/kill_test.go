package main

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/client"
)

// TestKill_AtEachStep kills the agent, the supervisor where there is one, and both, at each step of a launch, a stop, a restart and
// a termination. Each time the instance comes to what is desired, runs at most once meanwhile, and leaves nothing.
func TestKill_AtEachStep(t *testing.T) {
	k := newKiller(t)
	for _, step := range failpoint.Steps() {
		for _, c := range casesOf(step) {
			ok := t.Run(string(step)+"/"+c.String(), func(t *testing.T) {
				k.in(t)
				k.killedAt(step, c)
			})
			k.in(t)
			if !ok {
				return // what is left of it would confuse the next ones
			}
		}
	}
	missing, unknown := k.gate.unseen()
	if len(missing)+len(unknown) > 0 {
		t.Errorf("steps that nobody came to: %q; steps that are not in the table: %q", missing, unknown)
	}
}

// killCase says what is done to whom when a step is come to.
type killCase struct {
	flow              flow
	agent, supervisor bool // are killed
	terminated        bool // is the instance before the next agent is started
}

// flow is what is asked for so that a step is taken.
type flow string

const (
	launches   flow = "launch"
	relaunches flow = "launch again"
	restarts   flow = "restart"
	stops      flow = "stop"
	terminates flow = "terminate"
)

func (c killCase) String() string {
	words := []string{string(c.flow)}
	for word, is := range map[string]bool{"agent": c.agent, "supervisor": c.supervisor} {
		if is {
			words = append(words, word)
		}
	}
	slices.Sort(words[1:])
	if c.terminated {
		words = append(words, "terminated")
	}
	return strings.Join(words, ", ")
}

// casesOf returns what is tried at a step.
func casesOf(step failpoint.Step) (cases []killCase) {
	flows := flowsOf(step)
	for _, f := range flows {
		cases = append(cases, killCase{flow: f, agent: true})
	}
	if supervised(step) {
		cases = append(cases, killCase{flow: flows[0], supervisor: true}, killCase{flow: flows[0], agent: true, supervisor: true})
	}
	if strings.HasPrefix(string(step), "launch:") && flows[0] == launches {
		cases = append(cases, killCase{flow: launches, agent: true, terminated: true})
	}
	return cases
}

// flowsOf returns the flows that a step is tried in.
func flowsOf(step failpoint.Step) []flow {
	verb, _, _ := strings.Cut(string(step), ":")
	switch {
	case step == failpoint.LaunchSucceeded:
		return []flow{restarts}
	case step == failpoint.StopLate, step == failpoint.StopSeized:
		return []flow{stops}
	case verb == "stop", verb == "end", step == failpoint.SuperviseEnded, step == failpoint.SuperviseFinished:
		return []flow{stops, restarts}
	case verb == "relaunch":
		return []flow{relaunches}
	case verb == "remove":
		return []flow{terminates}
	}
	return []flow{launches, restarts}
}

// supervised reports whether a machine has a supervisor at a step.
func supervised(step failpoint.Step) bool {
	switch step {
	case failpoint.LaunchSupervisor, failpoint.LaunchTold, failpoint.LaunchSucceeded, failpoint.LaunchDone, failpoint.RelaunchDone,
		failpoint.StopChosen, failpoint.StopNoted, failpoint.StopAsked, failpoint.StopLate, failpoint.RemoveChosen:
		return true
	}
	flow, _, _ := strings.Cut(string(step), ":")
	return flow == "supervise" || flow == "end"
}

// killer is a cloud whose processes wait at their steps to be killed.
type killer struct {
	*cloud
	gate *gate
	api  *client.Client
}

func newKiller(t *testing.T) *killer {
	t.Helper()
	c := newCloud(t)
	k := &killer{cloud: c, gate: newGate(t, t.TempDir()), api: c.client()}
	c.env = []string{failpoint.Variable + "=" + k.gate.path}
	c.flags = []string{"--stop-grace", "2s"}
	k.killAgent()
	c.startAgent()
	return k
}

// in has the test that runs report failures.
func (k *killer) in(t *testing.T) { k.t, k.gate.t = t, t }

// client returns one that connects from inside the cloud's network.
func (c *cloud) client() *client.Client {
	c.t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		back, err := setns("/run/netns/" + c.netns)
		if err != nil {
			return nil, err
		}
		defer back()
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	api, err := client.New(client.Options{Transport: transport})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = api.Close() })
	return api
}

// setns moves the calling thread to a network namespace until the returned function is called.
func setns(path string) (back func(), err error) {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	to, err := os.Open(path)
	if err == nil {
		defer to.Close()
		err = unix.Setns(int(to.Fd()), unix.CLONE_NEWNET)
	}
	if err != nil {
		_ = own.Close()
		return nil, err
	}
	return func() {
		defer own.Close()
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
	}, nil
}

func (k *killer) killAgent() {
	k.t.Helper()
	killHard(k.t, k.agent.Process.Pid)
	_ = k.agent.Wait() // killed
}

// killedAt has processes killed while one of them is at a step.
func (k *killer) killedAt(step failpoint.Step, c killCase) {
	k.t.Helper()
	want := k.begin(c.flow, step)
	h := k.gate.wait(step)
	if c.supervisor {
		k.killSupervisor(h)
	}
	if c.agent {
		k.killAgent()
	}
	h.release()
	if c.terminated {
		k.must(k.api.TerminateInstance(k.t.Context(), want.id))
		want.status = muster.Terminated
	}
	if c.agent {
		k.startAgent()
	}
	k.converges(want)
}

// killSupervisor kills the one that is held, or that of the machine for which the agent is.
func (k *killer) killSupervisor(h held) {
	k.t.Helper()
	pid := h.pid
	if pid == k.agent.Process.Pid {
		pid = supervisorOf(h.machine)
	}
	if pid == 0 && h.step != failpoint.StopAsked { // by then its payload may have ended
		k.t.Errorf("%s has no supervisor", h.machine)
	}
	killHard(k.t, pid)
}

// desire is what an instance has to come to.
type desire struct {
	id         muster.InstanceID
	status     muster.InstanceStatus
	generation int64
}

// begin has a flow begin that is held at a step.
func (k *killer) begin(f flow, step failpoint.Step) desire {
	k.t.Helper()
	trap := "exit 0"
	if step == failpoint.StopLate || step == failpoint.StopSeized {
		trap = "" // it has to be killed
	}
	switch f {
	case relaunches:
		k.gate.arm(failpoint.LaunchPutDown)
		i := k.order(trap)
		h := k.gate.wait(failpoint.LaunchPutDown)
		k.killAgent()
		h.release()
		k.gate.arm(step)
		k.startAgent()
		return desire{i.ID, muster.Running, 1}
	case restarts:
		i := k.runs(trap)
		k.gate.arm(step)
		k.must(k.api.RestartInstance(k.t.Context(), i.ID))
		return desire{i.ID, muster.Running, 2}
	case stops:
		i := k.runs(trap)
		k.gate.arm(step)
		k.must(k.api.StopInstance(k.t.Context(), i.ID))
		return desire{i.ID, muster.Stopped, 1}
	case terminates:
		i := k.runs(trap)
		k.gate.arm(step)
		k.must(k.api.TerminateInstance(k.t.Context(), i.ID))
		return desire{i.ID, muster.Terminated, 1}
	}
	k.gate.arm(step)
	return desire{k.order(trap).ID, muster.Running, 1}
}

func (k *killer) must(i *client.Instance, err error) *client.Instance {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
	return i
}

// marker is in the command line of the tests' payloads.
const marker = "muster-kill-payload"

// order asks for an instance, with what its payload does when it is told to stop.
func (k *killer) order(trap string) *client.Instance {
	k.t.Helper()
	script := fmt.Sprintf(": %s; trap '%s' TERM; while :; do sleep 1000 & wait $!; done", marker, trap)
	return k.must(k.api.LaunchInstance(k.t.Context(), muster.LaunchInstanceInput{Type: muster.Small, Image: "minimal", Command: []string{"/bin/sh", "-c", script}}))
}

// runs launches an instance and waits until it runs.
func (k *killer) runs(trap string) *client.Instance {
	k.t.Helper()
	i := k.order(trap)
	k.until(fmt.Sprintf("%s runs", i.ID), func() bool { return k.is(desire{i.ID, muster.Running, 1}) })
	return i
}

func (k *killer) is(want desire) bool {
	k.t.Helper()
	i := k.must(k.api.Instance(k.t.Context(), want.id))
	return i.Status == want.status && i.Generation == want.generation
}

// converges waits until an instance is what is desired and has only what that needs, and then terminates it.
func (k *killer) converges(want desire) {
	k.t.Helper()
	disk := diskOf(k.must(k.api.Instance(k.t.Context(), want.id)).Machine)
	k.comesTo(want, disk)
	if want.status != muster.Terminated {
		k.must(k.api.TerminateInstance(k.t.Context(), want.id))
		want.status = muster.Terminated
		k.comesTo(want, disk)
	}
}

func diskOf(machine string) string { return machine[:strings.LastIndexByte(machine, '-')] }

func (k *killer) comesTo(want desire, disk string) {
	k.t.Helper()
	var differs string
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if n := payloads(); n > 1 {
			k.t.Fatalf("%d payloads of %s run", n, want.id)
		}
		i := k.must(k.api.Instance(k.t.Context(), want.id))
		differs = fmt.Sprintf("%s, generation %d, %q", i.Status, i.Generation, i.StatusReason)
		if i.Status == want.status && i.Generation == want.generation {
			if differs = strings.Join(k.beside(want, disk), "\n"); differs == "" {
				return
			}
		}
		if time.Now().After(deadline) {
			k.logEnd()
			k.t.Fatalf("%s is not %s of generation %d with nothing else after 20 s: %s", want.id, want.status, want.generation, differs)
		}
	}
}

func (k *killer) logEnd() {
	log, _ := os.ReadFile(k.log.Name())
	k.t.Logf("the log ends with\n%s", log[max(0, len(log)-3000):])
}

// payloads counts the payloads that run, by the command line and by being their machine's process 2.
func payloads() int {
	return len(slices.DeleteFunc(pidsOf(func(words []string) bool {
		return words[0] == "/bin/sh" && strings.Contains(words[len(words)-1], marker)
	}), func(pid int) bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, line, _ := strings.Cut(string(text), "\nNSpid:")
		line, _, _ = strings.Cut(line, "\n")
		return !strings.HasSuffix(line, "\t2")
	}))
}

// beside tells what of an instance is there that should not be, or the other way around.
func (k *killer) beside(want desire, disk string) (differs []string) {
	machine := fmt.Sprintf("%s-%d", disk, want.generation)
	runs, gone := want.status == muster.Running, want.status == muster.Terminated
	var has []string
	for dir, prefix := range map[string]string{
		filepath.Join(k.dir, "agent/machines"): "", filepath.Join(k.dir, "agent/locks"): "", filepath.Join(k.dir, "agent/disks"): "",
		"/run/netns": disk,
	} {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), prefix) {
				has = append(has, filepath.Base(dir)+"/"+entry.Name())
			}
		}
	}
	has = append(has, groupsOf(disk)...)
	var may []string
	if !gone {
		may = append(may, "machines/"+machine, "locks/"+machine, "disks/"+disk)
	}
	if runs {
		may = append(may, "netns/"+machine, "cgroup/"+machine)
	}
	for _, thing := range may {
		if !slices.Contains(has, thing) {
			differs = append(differs, "missing: "+thing)
		}
	}
	for _, thing := range has {
		if !slices.Contains(may, thing) {
			differs = append(differs, "left: "+thing)
		}
	}
	counts := map[string][2]int{ // what there is, and what there should be
		"payloads": {payloads(), 0}, "supervisors": {len(pidsOf(isSupervisorOf(disk))), 0},
		"veth interfaces": {k.veths(), 0}, "mounts": {k.mounts(), 0},
	}
	for thing, n := range counts {
		if runs && thing != "mounts" {
			n[1] = 1
		}
		if n[0] != n[1] {
			differs = append(differs, fmt.Sprintf("%d %s, want %d", n[0], thing, n[1]))
		}
	}
	return differs
}

func isSupervisorOf(disk string) func([]string) bool {
	return func(words []string) bool {
		return len(words) == 4 && words[1] == "shim" && strings.HasPrefix(filepath.Base(words[3]), disk+"-")
	}
}

func (c *cloud) veths() int {
	out, _ := exec.Command("ip", "-n", c.netns, "-br", "link", "show", "type", "veth").Output()
	return strings.Count(string(out), "\n")
}

func (c *cloud) mounts() int {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	return strings.Count(string(text), c.dir)
}

// groupsOf returns the machines of a disk that have cgroups, each once.
func groupsOf(disk string) (all []string) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), disk+"-") {
			all = append(all, "cgroup/"+entry.Name())
			return filepath.SkipDir
		}
		return nil
	})
	slices.Sort(all)
	return slices.Compact(all)
}
