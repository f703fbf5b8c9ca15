package agent

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// Images has the images of the registry's that a node gets when it needs them.
type Images interface {
	// Has reports whether the image of a digest is on the node.
	Has(digest string) bool
	// Pull returns once it is, which may take long. It tries until ctx ends; an error before is final.
	Pull(ctx context.Context, name, digest string) error
	// Retire takes away what is not used, by digest; the function that it returns deletes that.
	Retire(used map[string]bool) (remove func() error, err error)
}

// pull gets the image that a step starts from, and reports whether the step can go
// on. It gives up when the machine is not wanted any more; one whose image
// cannot be had has failed.
func (a *Agent) pull(ctx context.Context, s step) bool {
	if s.verb != launch && s.verb != relaunch || s.wanted.ImageDigest == "" || a.o.Images == nil || a.o.Images.Has(s.wanted.ImageDigest) {
		return true
	}
	pulling, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	wanted := a.wantedLocked(s.machine)
	if wanted {
		a.state.pulls[s.machine] = pull{cancel: cancel, note: "pulling image " + s.wanted.BaseImage}
	}
	a.mu.Unlock()
	if !wanted {
		return false
	}
	a.reportDue.raise()
	err := a.o.Images.Pull(pulling, s.wanted.BaseImage, s.wanted.ImageDigest)
	a.mu.Lock()
	delete(a.state.pulls, s.machine)
	wanted = a.wantedLocked(s.machine)
	a.mu.Unlock()
	if err != nil && pulling.Err() == nil {
		_ = a.launched(ctx, s.machine, err) // it is noted, and only a context's end is an error
	}
	return err == nil && wanted
}

// pull is one under way.
type pull struct {
	cancel context.CancelFunc
	note   string
}

// wantedLocked reports whether a machine is to run, as far as is known.
func (a *Agent) wantedLocked(machine string) bool {
	if a.state.remove[machine] || a.state.desired == nil {
		return false
	}
	for _, w := range a.state.desired.Instances {
		if w.Machine == machine {
			return w.Desired == muster.WantRunning && !w.Ended
		}
	}
	return false
}

// giveUpPullsLocked ends the pulls for machines that are not wanted any more.
func (a *Agent) giveUpPullsLocked() {
	for machine, p := range a.state.pulls {
		if !a.wantedLocked(machine) {
			p.cancel()
		}
	}
}

// notesLocked says what machines wait for.
func (a *Agent) notesLocked() map[string]string {
	notes := map[string]string{}
	for machine, p := range a.state.pulls {
		notes[machine] = p.note
	}
	return notes
}

// retire takes away the images that neither a machine nor an assignment uses. What is
// to be deleted is left to the function. Nothing is taken before the registry has
// said what it wants.
func (a *Agent) retire(machines []driver.Status) (remove func() error) {
	nothing := func() error { return nil }
	if a.o.Images == nil {
		return nothing
	}
	used := map[string]bool{}
	for _, m := range machines {
		used[m.Spec.ImageDigest] = true
	}
	a.mu.Lock()
	known := a.state.desired != nil
	if known {
		for _, w := range a.state.desired.Instances {
			if w.Desired != muster.WantTerminated {
				used[w.ImageDigest] = true
			}
		}
	}
	for _, s := range a.state.busy {
		if s.wanted != nil {
			used[s.wanted.ImageDigest] = true
		}
	}
	a.mu.Unlock()
	if !known {
		return nothing
	}
	remove, err := a.o.Images.Retire(used)
	if err != nil {
		a.o.Logger.Warn("an image that nothing uses could not be removed", "node", a.o.ID, "err", err)
	}
	return remove
}
