package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/client"
)

// TestKill_AtEachStep kills the agent, the supervisor where there is one, and both, at each step of a launch, a stop, a restart and
// a termination. Each time the instance comes to what is desired, runs at most once meanwhile, and leaves nothing.
func TestKill_AtEachStep(t *testing.T) {
	t.Parallel() // it mostly waits
	newKiller(t).walk(t, casesOf)
}

// TestKill_AtEachStepOfUnits does so on a host where each machine is a unit of systemd's, which ends it with its supervisor.
func TestKill_AtEachStepOfUnits(t *testing.T) {
	t.Parallel()
	newUnitKiller(t).walk(t, func(step failpoint.Step) (few []killCase) {
		for _, c := range casesOf(step) {
			if c.flow == flowsOf(step)[0] && !c.terminated && c.agent != c.supervisor {
				few = append(few, c)
			}
		}
		return few
	})
}

func (k *killer) walk(t *testing.T, casesOf func(failpoint.Step) []killCase) {
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

// runs reports whether a payload is known to run at a step of a launch.
func runs(step failpoint.Step) bool {
	switch step {
	case failpoint.SuperviseRunning, failpoint.SuperviseTold, failpoint.LaunchTold, failpoint.LaunchSucceeded, failpoint.LaunchDone, failpoint.RelaunchDone:
		return true
	}
	return false
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

// killer has the processes of a node wait at their steps to be killed.
type killer struct {
	site
	t    *testing.T
	gate *gate
	api  *client.Client

	marker      string // is in the command line of its payloads
	loops       bool   // what is launched has a disk with a limit, which is a loop device
	diskLimitMB int    // of the present instance
}

// in has the test that runs report failures.
func (k *killer) in(t *testing.T) {
	k.t, k.gate.t = t, t
	k.reportTo(t)
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
	if c.supervisor && want.status == muster.Running && k.endsWithSupervisor() && runs(step) {
		want.status = muster.Failed
	}
	k.converges(want)
}

// killSupervisor kills the one that is held, or that of the machine for which the agent is.
func (k *killer) killSupervisor(h held) {
	k.t.Helper()
	pid := h.pid
	if pid == k.agentPID() {
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
	k.diskLimitMB = 0
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
		i := k.running(trap)
		k.gate.arm(step)
		k.must(k.api.RestartInstance(k.t.Context(), i.ID))
		return desire{i.ID, muster.Running, 2}
	case stops:
		i := k.running(trap)
		k.gate.arm(step)
		k.must(k.api.StopInstance(k.t.Context(), i.ID))
		return desire{i.ID, muster.Stopped, 1}
	case terminates:
		i := k.running(trap)
		k.gate.arm(step)
		k.must(k.api.TerminateInstance(k.t.Context(), i.ID))
		return desire{i.ID, muster.Terminated, 1}
	}
	k.gate.arm(step)
	if k.loops {
		k.diskLimitMB = 64
	}
	return desire{k.order(trap).ID, muster.Running, 1}
}

func (k *killer) must(i *client.Instance, err error) *client.Instance {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
	return i
}

// order asks for an instance, with what its payload does when it is told to stop.
func (k *killer) order(trap string) *client.Instance {
	k.t.Helper()
	script := fmt.Sprintf(": %s; trap '%s' TERM; while :; do sleep 1000 & wait $!; done", k.marker, trap)
	return k.must(k.api.LaunchInstance(k.t.Context(), muster.LaunchInstanceInput{Type: muster.Small, Image: "minimal", DiskLimitMB: k.diskLimitMB, Command: []string{"/bin/sh", "-c", script}}))
}

// running launches an instance and waits until it runs.
func (k *killer) running(trap string) *client.Instance {
	k.t.Helper()
	i := k.order(trap)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if now := k.must(k.api.Instance(k.t.Context(), i.ID)); now.Status == muster.Running {
			return now
		} else if time.Now().After(deadline) {
			k.logEnd()
			k.t.Fatalf("%s does not run, it is %s", i.ID, now.Status)
		}
	}
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
		if n := k.payloads(); n > 1 {
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
