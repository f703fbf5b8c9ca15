package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/driver"
)

// judge is a driver that says what no agent may do, and that dies with its agent.
type judge struct {
	driver.Driver
	cloud *cloud
	dead  atomic.Bool
	fail  *atomic.Int64 // how many of the next removals and stops fail
}

var errDead = errors.New("this agent has been killed")

func (j *judge) Launch(ctx context.Context, spec driver.Spec) (driver.Status, error) {
	if j.dead.Load() {
		return driver.Status{}, errDead
	}
	all, err := j.List(ctx)
	if err != nil {
		return driver.Status{}, err
	}
	for _, m := range all {
		if m.Spec.Instance == spec.Instance && (m.State != driver.Exited || m.Spec.Generation > spec.Generation) {
			j.cloud.with(func() { j.cloud.fault("%s is launched beside %s, which is %s", spec.Machine, m.Spec.Machine, m.State) })
		}
	}
	return j.Driver.Launch(ctx, spec)
}

func (j *judge) Remove(ctx context.Context, machine string) error {
	if j.dead.Load() {
		return errDead
	}
	j.cloud.with(func() {
		allowed := j.cloud.named[machine]
		for _, w := range j.cloud.instances {
			if w.Desired == muster.WantTerminated && (w.Machine == machine || isEarlier(machine, w)) {
				allowed = true
			}
		}
		if !allowed {
			j.cloud.fault("%s is removed and nobody named it", machine)
		}
	})
	j.spare(ctx, machine)
	if j.fail.Add(-1) >= 0 {
		return errors.New("busy")
	}
	return j.Driver.Remove(ctx, machine)
}

// spare is a fault when a machine runs that goes on for a while.
func (j *judge) spare(ctx context.Context, machine string) {
	all, err := j.List(ctx)
	if err != nil {
		return
	}
	for _, m := range all {
		j.cloud.with(func() {
			w := j.cloud.instances[muster.InstanceID(m.Spec.Instance)]
			if m.Spec.Machine == machine && m.State == driver.Running && w != nil && time.Now().Before(w.drains) && !j.cloud.named[machine] {
				j.cloud.fault("%s is ended and was to go on for %s", machine, time.Until(w.drains))
			}
		})
	}
}

func isEarlier(machine string, w *wish) bool {
	for g := range w.Generation {
		if machine == fmt.Sprintf("k3f9-%s-%d", w.ID, g) {
			return true
		}
	}
	return false
}

func (j *judge) Stop(ctx context.Context, machine string, grace time.Duration) (driver.Status, error) {
	if j.dead.Load() {
		return driver.Status{}, errDead
	}
	j.spare(ctx, machine)
	if j.fail.Add(-1) >= 0 {
		return driver.Status{}, errors.New("busy")
	}
	return j.Driver.Stop(ctx, machine, grace)
}

func (j *judge) Relaunch(ctx context.Context, machine string) (driver.Status, error) {
	if j.dead.Load() {
		return driver.Status{}, errDead
	}
	return j.Driver.(agent.Relauncher).Relaunch(ctx, machine)
}

// history is one random run.
type history struct {
	*world
	agent *running
	judge *judge
	fail  atomic.Int64
	boots int
}

func (h *history) begin() {
	h.wrap = func(d driver.Driver) driver.Driver {
		h.judge = &judge{Driver: d, cloud: h.cloud, fail: &h.fail}
		return h.judge
	}
	h.agent = h.start()
}

// event is something that happens; all of it is drawn before anything does.
type event struct {
	what   string
	id     muster.InstanceID // there may be none of that id
	n      int               // how much of it, 0 to 39
	really bool
}

func events() *rapid.Generator[event] {
	kinds := []string{ // as often as they stand here
		"launch", "launch", "launch", "stop", "stop", "start", "start", "restart", "restart", "restart", "terminate", "terminate",
		"nudge", "nudge", "nudge", "time", "time", "time", "time", "moment", "exit", "agent restarts", "host restarts",
		"forgotten", "hidden", "away", "back", "back", "back", "failures",
	}
	return rapid.Custom(func(t *rapid.T) event {
		return event{
			what: rapid.SampledFrom(kinds).Draw(t, "what"), id: muster.InstanceIDOf(int64(rapid.IntRange(1, 3).Draw(t, "id"))),
			n: rapid.IntRange(0, 39).Draw(t, "n"), really: rapid.Bool().Draw(t, "really"),
		}
	})
}

func (h *history) happen(e event) {
	if order := e.what == "stop" || e.what == "restart" || e.what == "terminate"; order && e.really {
		h.cloud.drain(e.id, time.Duration(e.n)*500*time.Millisecond)
	}
	commands := [][]string{nil, nil, nil, {"stubborn"}, {"exit", "0", "done"}, {"exit", "3", "oh"}, {"no such program"}}
	switch e.what {
	case "launch":
		h.cloud.launch(commands[e.n%len(commands)]...)
	case "stop":
		h.cloud.stop(e.id)
	case "start":
		h.cloud.start(e.id)
	case "restart":
		h.cloud.restart(e.id)
	case "terminate":
		h.cloud.terminate(e.id)
	case "nudge":
		h.agent.nudgeNow(h.world, e.id)
	case "exit":
		h.host.Exit(fmt.Sprintf("k3f9-%s-%d", e.id, e.n%3+1), e.n%2, "")
	case "agent restarts":
		h.restart(e, func() {})
	case "host restarts":
		h.restart(e, func() {
			h.host.Restart()
			h.boots++
			h.boot = fmt.Sprint("boot-", h.boots+1)
		})
	case "forgotten":
		h.cloud.with(func() { h.cloud.known = false })
	case "hidden":
		h.cloud.hide(e.really)
	case "away":
		calls := []string{"", "ReportInstances", "Assignments", "Heartbeat"}
		h.cloud.with(func() { h.cloud.fail, h.cloud.lost = unavailable(calls[e.n%len(calls)]), e.really })
	case "back":
		h.cloud.with(func() { h.cloud.fail, h.cloud.lost = nil, e.really })
	case "failures":
		h.fail.Store(int64(e.n % 4))
	case "time":
		pass(time.Duration(e.n) * 600 * time.Millisecond)
	case "moment":
		synctest.Wait()
	}
}

// restart ends the agent, by force or not, and begins another one a while later.
func (h *history) restart(e event, meanwhile func()) {
	h.judge.dead.Store(e.really)
	h.agent.stop()
	if err := h.agent.err; err != nil {
		h.cloud.with(func() { h.cloud.fault("the agent ended with %v", err) })
	}
	meanwhile()
	pass(time.Duration(e.n) * time.Second)
	h.begin()
}

// converged judges what is there when all has had its time.
func (h *history) converged() {
	h.cloud.mu.Lock()
	defer h.cloud.mu.Unlock()
	for id, w := range h.cloud.instances {
		m := h.machine(w.Machine)
		live := m != nil && m.State != driver.Exited
		ended := w.status == muster.Stopped || w.status == muster.Failed
		ok := false
		switch w.Desired {
		case muster.WantTerminated:
			ok = w.status == muster.Terminated && m == nil
		case muster.WantStopped:
			ok = w.status == muster.Stopped && !live
		case muster.WantRunning:
			ok = w.status == muster.Running && live && *w.seen.PID == m.PID || ended && !live
		}
		if !ok {
			h.cloud.fault("%s should be %s and is %s: %+v", id, w.Desired, w.status, m)
		}
	}
	for _, name := range h.host.Machines() {
		m := h.machine(name)
		w := h.cloud.instances[muster.InstanceID(m.Spec.Instance)]
		if m.State != driver.Exited && m.Spec.Generation != w.Generation {
			h.cloud.fault("%s runs and generation %d of it is wanted", name, w.Generation)
		}
	}
}

func TestAgent_ConvergesWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		slow := rapid.IntRange(0, 8).Draw(rt, "seconds of a launch")
		plan := rapid.SliceOfN(events(), 1, 60).Draw(rt, "plan")
		var faults []string
		var log string
		play(t, func(t *testing.T, w *world) {
			h := &history{world: w}
			w.host.OnLaunch(func(ctx context.Context, _ driver.Spec) error {
				pause(ctx, time.Duration(slow)*time.Second)
				return ctx.Err()
			})
			h.begin()
			for _, e := range plan {
				h.happen(e)
			}
			h.fail.Store(0)
			w.cloud.with(func() { w.cloud.fail, w.cloud.lost = nil, false })
			w.cloud.hide(false)
			pass(5 * time.Minute)
			h.converged()
			launches := h.launches()
			pass(10 * time.Minute)
			h.converged()
			if now := h.launches(); now != launches {
				w.cloud.with(func() { w.cloud.fault("%d launches after it had converged", now-launches) })
			}
			// Told by rapid, so that it looks for a shorter plan.
			w.cloud.with(func() { faults, w.cloud.faults = w.cloud.faults, nil })
			log = w.log.String()
		})
		if len(faults) > 0 {
			rt.Fatalf("%s\n%s", strings.Join(faults, "\n"), log)
		}
	})
}

func (h *history) launches() (n int) {
	h.cloud.mu.Lock()
	defer h.cloud.mu.Unlock()
	for id := range h.cloud.instances {
		for g := range 40 {
			n += h.host.Launches(fmt.Sprintf("k3f9-%s-%d", id, g))
		}
	}
	return n
}
