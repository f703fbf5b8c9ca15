package agent

import (
	"context"
	"time"
)

// fetch asks for the assignments whenever they may have changed.
func (a *Agent) fetch(ctx context.Context) error {
	return a.whenever(ctx, a.fetchDue, "the assignments could not be fetched", a.fetchOnce)
}

// fetchOnce fetches. What arrives replaces what was there, whether its revision
// is higher or not.
func (a *Agent) fetchOnce(ctx context.Context) error {
	is, _ := a.identity()
	if is.UID == "" || !a.isRegistered() {
		return nil // the registration will fetch
	}
	desired, err := a.o.Registry.Assignments(ctx, is.UID, is.Incarnation)
	if err != nil {
		return err
	}
	a.mu.Lock()
	before := a.state.desired
	a.state.desired, a.state.fetched = desired, time.Now()
	a.pruneLocked()
	a.giveUpPullsLocked()
	a.mu.Unlock()
	if before == nil || before.Epoch != desired.Epoch || before.DesiredRevision != desired.DesiredRevision {
		a.o.Logger.Info("the desired state moved", "node", a.o.ID, "revision", desired.DesiredRevision, "instances", len(desired.Instances))
	}
	a.passDue.raise()
	a.reportDue.raise()
	return nil
}

// pruneLocked forgets the failures of machines that are not wanted any more.
func (a *Agent) pruneLocked() {
	wanted := map[string]bool{}
	for _, w := range a.state.desired.Instances {
		wanted[w.Machine] = true
	}
	for machine := range a.state.failed {
		if !wanted[machine] {
			delete(a.state.failed, machine)
		}
	}
}

// named takes the machines that the registry named as terminated.
func (a *Agent) named(machines []string) {
	if len(machines) == 0 {
		return
	}
	a.mu.Lock()
	for _, machine := range machines {
		a.state.remove[machine] = true
	}
	a.giveUpPullsLocked()
	a.mu.Unlock()
	a.fetchDue.raise() // what was fetched before may still want them
	a.passDue.raise()
}
