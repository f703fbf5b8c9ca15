package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/muster-cloud/muster/agent/driver"
)

const (
	// launchLimit and removeLimit bound one try of a driver.
	launchLimit = 2 * time.Minute
	removeLimit = time.Minute
	// finishLimit is how long the end of the agent waits for what it is doing.
	finishLimit = 10 * time.Second
	// longestWait bounds the pauses between tries, stepPause is that after a step that failed.
	longestWait = 10 * time.Second
	stepPause   = 2 * time.Second
	// launchLook is how often a launch that an earlier agent began is looked at.
	launchLook = 250 * time.Millisecond
)

// Relauncher is a driver's optional ability to start a machine that has Exited
// again, as the same generation on its own disk: after the host has restarted.
// Without it such a machine is FAILED until somebody starts it.
type Relauncher interface {
	Relaunch(ctx context.Context, machine string) (driver.Status, error)
}

// reconcile compares what is wanted with what is there and does the next step
// at each place, one at a time there, until both agree. It returns once all
// steps are over.
func (a *Agent) reconcile(ctx context.Context) error {
	// What is begun is finished if it can be soon, so that no half-made machine is left.
	working, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	var steps sync.WaitGroup
	slots := make(chan struct{}, a.o.Parallel)
	drained := time.AfterFunc(longestWait, a.passDue.raise)
	drained.Stop() // until something is
	defer drained.Stop()
	p := a.newPauses()
	for a.passDue.wait(ctx) {
		due, drain, unused, err := a.pass(ctx)
		if err != nil {
			pause := p.next(longestWait)
			a.o.Logger.Warn("the machines could not be listed", "node", a.o.ID, "err", err, "again_in", pause)
			if sleep(ctx, pause, nil) {
				a.passDue.raise()
			}
			continue
		}
		p.reset()
		if drain > 0 {
			drained.Reset(drain)
		}
		steps.Go(func() {
			if err := unused(); err != nil {
				a.o.Logger.Warn("an image that nothing uses was not deleted", "node", a.o.ID, "err", err)
			}
		})
		steps.Go(a.removeVolumes(working))
		for disk, s := range due {
			steps.Go(func() { a.work(ctx, working, slots, disk, s) })
		}
		if a.beginsToLook() {
			steps.Go(func() { a.lookAgain(ctx) })
		}
	}
	over := make(chan struct{})
	go func() { steps.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(finishLimit):
		abandon()
		<-over
	}
	return nil
}

// pass looks at every place and returns the steps that are due; their disks are
// busy from then on. It also returns after how long a machine is drained, 0: none is, and what deletes
// the images that nothing uses.
func (a *Agent) pass(ctx context.Context) (due map[string]step, drain time.Duration, unused func() error, err error) {
	a.mu.Lock()
	wasBusy := maps.Clone(a.state.busy) // before listing: what ends meanwhile was not seen as it is
	a.mu.Unlock()
	machines, err := a.o.Driver.List(ctx)
	if err != nil {
		return nil, 0, nil, err
	}
	a.wantServices(machines)
	due, drain, settled := a.choose(machines, wasBusy)
	unused = a.retire(machines)
	if settled {
		a.saveRevive()
	}
	_ = a.state.file.flush() // what failed has been logged when it first did
	if len(due) > 0 {
		a.reportDue.raise()
	}
	return due, drain, unused, nil
}

// beginsToLook reports whether a machine is in a launch of an earlier agent's, of which nobody tells that it
// runs, and nobody looks for that yet.
func (a *Agent) beginsToLook() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.state.preparing || a.state.looking {
		return false
	}
	a.state.looking = true
	return true
}

// lookAgain has everything looked at in a moment.
func (a *Agent) lookAgain(ctx context.Context) {
	sleep(ctx, launchLook, nil)
	a.mu.Lock()
	a.state.looking = false
	a.mu.Unlock()
	a.passDue.raise()
	a.reportDue.raise()
}

// choose picks the steps that are due, and reports whether a machine is no
// longer to be started again. drain is after how long the next one is drained; 0: none is.
func (a *Agent) choose(machines []driver.Status, wasBusy map[string]step) (due map[string]step, drain time.Duration, settled bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	due = map[string]step{}
	a.state.preparing = false
	all := places(a.state.desired, machines)
	for disk, p := range all {
		if _, busy := wasBusy[disk]; busy {
			continue
		}
		a.state.preparing = a.state.preparing || p.prepares()
		v, machine := p.next(a.marksLocked())
		if v == nothing {
			continue
		}
		if m, left := p.drained(a.marksLocked(), a.state.fetched); m != nil && m.Spec.Machine == machine {
			if drain == 0 || left < drain {
				drain = left
			}
			continue
		}
		s := step{verb: v, machine: machine}
		if v == launch || v == relaunch {
			s.wanted, s.subnet, s.epoch = p.wanted, a.state.desired.Subnet, a.state.desired.Epoch
		}
		a.state.busy[disk], due[disk] = s, s
	}
	return due, drain, a.settleLocked(all)
}

func (a *Agent) marksLocked() marks {
	return marks{failed: a.state.failed, remove: a.state.remove, revive: a.state.revive}
}

// settleLocked forgets marks that have no use any more, and reports whether
// those to start again are fewer.
func (a *Agent) settleLocked(all map[string]*place) bool {
	there := map[string]bool{}
	reviving := map[string]bool{}
	for _, p := range all {
		for _, m := range p.machines {
			there[m.Spec.Machine] = true
			reviving[m.Spec.Machine] = m.State != driver.Running && p.revives(m)
		}
	}
	for machine := range a.state.remove {
		p := all[diskOf(machine)]
		if wanted := p != nil && p.wanted != nil; !there[machine] && !wanted {
			delete(a.state.remove, machine)
		}
	}
	if a.state.desired == nil {
		return false // it is not known yet what is to be started again
	}
	before := len(a.state.revive)
	maps.DeleteFunc(a.state.revive, func(machine string, _ bool) bool { return !reviving[machine] })
	return len(a.state.revive) < before
}

// saveRevive writes down which machines are still to be started again.
func (a *Agent) saveRevive() {
	err := a.state.file.update(func(is *identity) {
		a.mu.Lock()
		defer a.mu.Unlock()
		is.Revive = slices.Sorted(maps.Keys(a.state.revive))
	})
	if err != nil {
		a.o.Logger.Error("a machine may be started once more after the agent's restart", "node", a.o.ID, "err", err)
	}
}

// work does a step when a slot is free, and gives its disk free afterwards: when
// it failed, after a pause.
func (a *Agent) work(ctx, working context.Context, slots chan struct{}, disk string, s step) {
	defer func() {
		a.mu.Lock()
		delete(a.state.busy, disk)
		a.mu.Unlock()
		a.passDue.raise()
		a.reportDue.raise()
	}()
	if !a.pull(ctx, s) { // before the slot: others need not wait for it
		return
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	if ctx.Err() != nil {
		<-slots
		return
	}
	began := time.Now()
	a.o.Reached.Reached(s.verb.chosen(), s.machine)
	err := a.do(ctx, working, s)
	a.o.Reached.Reached(s.verb.done(), s.machine)
	<-slots
	switch {
	case err == nil:
		a.o.Logger.Info("done", "step", s.verb, "machine", s.machine, "took", time.Since(began))
	case ctx.Err() == nil:
		a.o.Logger.Warn("a step failed", "step", s.verb, "machine", s.machine, "err", err)
		sleep(ctx, stepPause, nil)
	}
}

// do does a step. A launch that cannot be tried is a failed one and no error:
// it is not tried again.
func (a *Agent) do(ctx, working context.Context, s step) error {
	switch s.verb {
	case stop:
		// Given up when the agent ends: the payload has been told, and the next agent goes on.
		_, err := a.o.Driver.Stop(ctx, s.machine, a.o.Grace)
		if errors.Is(err, driver.ErrNotFound) {
			return nil
		}
		return err
	case remove:
		removeCtx, cancel := context.WithTimeout(working, removeLimit)
		defer cancel()
		return a.o.Driver.Remove(removeCtx, s.machine)
	case launch:
		launchCtx, cancel := context.WithTimeout(working, launchLimit)
		defer cancel()
		spec, err := specOf(s)
		if err == nil {
			err = a.checkAbilities(s.wanted)
		}
		if err == nil {
			_, err = a.o.Driver.Launch(launchCtx, spec)
		}
		return a.launched(working, s.machine, err)
	case relaunch:
		launchCtx, cancel := context.WithTimeout(working, launchLimit)
		defer cancel()
		again, ok := a.o.Driver.(Relauncher)
		err := errors.New("the host was restarted: start the instance again")
		if ok {
			_, err = again.Relaunch(launchCtx, s.machine)
		}
		return a.launched(working, s.machine, err)
	}
	return nil
}

// launched notes the outcome of a launch.
func (a *Agent) launched(working context.Context, machine string, err error) error {
	if err != nil && working.Err() != nil {
		return err // abandoned at the agent's end: the next one sees what is there
	}
	a.mu.Lock()
	if err != nil {
		a.state.failed[machine] = err.Error()
		a.o.Logger.Warn("a launch could not be tried", "machine", machine, "err", err)
	}
	revived := a.state.revive[machine]
	delete(a.state.revive, machine)
	a.mu.Unlock()
	if revived {
		a.saveRevive()
	}
	return nil
}

// specOf says to the driver what an assignment wants.
func specOf(s step) (driver.Spec, error) {
	w := s.wanted
	spec := driver.Spec{
		Machine: w.Machine, Disk: diskOf(w.Machine), Instance: string(w.ID), Generation: w.Generation, Epoch: s.epoch,
		Hostname: w.Name, Image: w.BaseImage, ImageDigest: w.ImageDigest, Command: w.Command, Env: w.Env, CPUPercent: w.CPULimit, MemoryMB: w.MemLimitMB,
		Volumes: w.Volumes, DiskLimitMB: w.DiskLimitMB,
	}
	if spec.Hostname == "" {
		spec.Hostname = string(w.ID)
	}
	if w.Addr == "" {
		return spec, nil
	}
	subnet, err := netip.ParsePrefix(s.subnet)
	if err != nil {
		return spec, fmt.Errorf("the node's subnet %q is none: %w", s.subnet, err)
	}
	spec.Addr = fmt.Sprintf("%s/%d", w.Addr, subnet.Bits())
	spec.Gateway = subnet.Masked().Addr().Next().String()
	return spec, nil
}
