package proc

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// kind is what is wanted of a process.
type kind int

const (
	wantNothing kind = iota
	wantRunning
	wantStopped
	wantGone
)

type want struct {
	kind kind
	spec Spec        // of what should run
	stop driver.Stop // how it is stopped
}

// keeper looks after one process.
type keeper struct {
	s     *Supervisor
	ref   driver.ProcessRef
	woken chan struct{}

	mu     sync.Mutex
	want   want
	status Status
}

func (k *keeper) nudge() {
	select {
	case k.woken <- struct{}{}:
	default:
	}
}

func (k *keeper) set(w want) {
	k.mu.Lock()
	k.want = w
	k.mu.Unlock()
	k.nudge()
}

func (k *keeper) wanted() want {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.want
}

func (k *keeper) current() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// tell notes the status.
func (k *keeper) tell(now Status) {
	now.Ref = k.ref
	k.mu.Lock()
	changed := !same(k.status, now)
	k.status = now
	k.mu.Unlock()
	if changed {
		k.s.o.Changed(k.ref)
	}
}

func same(a, b Status) bool {
	equal := (a.ExitCode == nil) == (b.ExitCode == nil) && (a.ExitCode == nil || *a.ExitCode == *b.ExitCode) &&
		a.Started.Equal(b.Started) && a.Ended.Equal(b.Ended) && a.Next.Equal(b.Next)
	for _, s := range []*Status{&a, &b} {
		s.ExitCode, s.Started, s.Ended, s.Next = nil, time.Time{}, time.Time{}, time.Time{}
	}
	return equal && a == b
}

// run looks after the process until nothing is wanted of it.
func (k *keeper) run(ctx context.Context) {
	for {
		w := k.wanted()
		wait, done := k.pass(ctx, w)
		if done && k.s.forget(k) {
			k.s.o.Changed(k.ref)
			return
		}
		if !k.sleep(ctx, wait) {
			return
		}
	}
}

// sleep returns when the keeper is woken, or after a time that is not 0; false: ctx has ended.
func (k *keeper) sleep(ctx context.Context, wait time.Duration) bool {
	var due <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-k.woken:
	case <-due:
	}
	return true
}

// pass does what is to be done now, and says after how long there is more; 0: when it is woken.
func (k *keeper) pass(ctx context.Context, w want) (wait time.Duration, done bool) {
	var err error
	switch w.kind {
	case wantNothing:
		return 0, true
	case wantGone:
		err = k.s.o.Driver.RemoveProcess(ctx, k.ref)
		done = err == nil
	case wantStopped:
		err = k.halt(ctx, w)
	case wantRunning:
		wait, err = k.keep(ctx, w)
	}
	if err != nil && ctx.Err() == nil {
		k.s.o.Logger.Warn("a process is not as it should be", "process", k.ref.String(), "err", err)
		now := k.current()
		now.Reason = muster.Storable(err.Error(), muster.MaxReasonBytes)
		k.tell(now)
		return k.s.o.Retry, false
	}
	return wait, done
}

// find returns the process as the driver has it.
func (k *keeper) find(ctx context.Context) (driver.ProcessStatus, bool, error) {
	all, err := k.s.o.Driver.ListProcesses(ctx)
	if err != nil {
		return driver.ProcessStatus{}, false, err
	}
	i := slices.IndexFunc(all, func(p driver.ProcessStatus) bool { return p.Spec.ProcessRef == k.ref })
	if i < 0 {
		return driver.ProcessStatus{}, false, nil
	}
	return all[i], true, nil
}

func (k *keeper) halt(ctx context.Context, w want) error {
	p, found, err := k.find(ctx)
	if err != nil {
		return err
	}
	if found && p.State != driver.Exited {
		k.tell(k.describe(p, Stopping, ""))
		if p, err = k.s.o.Driver.StopProcess(ctx, k.ref, w.stop); err != nil && !errors.Is(err, driver.ErrNotFound) {
			return err
		}
	}
	k.tell(k.describe(p, Stopped, p.Reason))
	return nil
}

// describe puts what the driver says together with what is remembered.
func (k *keeper) describe(p driver.ProcessStatus, state State, reason string) Status {
	m := memoryOf(&p)
	return Status{
		State: state, Generation: m.Generation, PID: p.PID, ExitCode: p.ExitCode, Reason: reason,
		Restarts: m.Restarts, Started: p.Started, Ended: p.Ended,
	}
}

// keep has the process run.
func (k *keeper) keep(ctx context.Context, w want) (wait time.Duration, err error) {
	p, found, err := k.find(ctx)
	if err != nil {
		return 0, err
	}
	if !found || memoryOf(&p).Generation < w.spec.Generation {
		if found && p.State != driver.Exited {
			k.tell(k.describe(p, Stopping, ""))
			if _, err := k.s.o.Driver.StopProcess(ctx, k.ref, w.stop); err != nil && !errors.Is(err, driver.ErrNotFound) {
				return 0, err
			}
		}
		return k.start(ctx, w, Memory{Generation: w.spec.Generation, Artifact: w.spec.Artifact})
	}
	if p.State != driver.Exited {
		k.tell(k.describe(p, Running, ""))
		return 0, nil
	}
	decision := Decide(w.spec.Restart, p)
	if !decision.Start {
		state := Stopped
		if decision.Failed {
			state = Failed
		}
		k.tell(k.describe(p, state, decision.Reason))
		return 0, nil
	}
	// A clock that was set back must not make a pause of hours.
	if wait := min(time.Until(p.Ended.Add(decision.Pause)), decision.Pause); wait > 0 {
		now := k.describe(p, Waiting, decision.Reason)
		now.Next = time.Now().Add(wait)
		k.tell(now)
		return wait, nil
	}
	return k.start(ctx, w, decision.Next)
}

// start starts the process, and says when to look again.
func (k *keeper) start(ctx context.Context, w want, m Memory) (wait time.Duration, err error) {
	spec := w.spec.ProcessSpec
	spec.Note = m.note()
	if now := k.current(); now.State != Starting || now.Generation != m.Generation || now.Restarts != m.Restarts {
		k.tell(Status{State: Starting, Generation: m.Generation, Restarts: m.Restarts})
	}
	p, err := k.s.o.Driver.StartProcess(ctx, spec)
	switch {
	case errors.Is(err, driver.ErrNotFound) || muster.CodeOf(err) == muster.Conflict:
		k.tell(Status{State: Starting, Generation: m.Generation, Restarts: m.Restarts, Reason: "its instance does not run"})
		return k.s.o.Retry, nil
	case err != nil:
		return 0, err
	case p.State != driver.Exited:
		k.tell(k.describe(p, Running, ""))
		return 0, nil
	}
	k.nudge() // it has ended already
	return 0, nil
}
