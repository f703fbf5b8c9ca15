package agent

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/failpoint"
)

// verb is what an agent can do about a machine.
type verb string

const (
	nothing  verb = ""
	launch   verb = "launch"
	relaunch verb = "relaunch" // the same generation again, on its disk
	stop     verb = "stop"
	remove   verb = "remove"
)

// chosen and done are the failpoints before and after.
func (v verb) chosen() failpoint.Step { return failpoint.Step(v + ":chosen") }
func (v verb) done() failpoint.Step   { return failpoint.Step(v + ":done") }

// step is one thing to do about one machine.
type step struct {
	verb    verb
	machine string
	wanted  *muster.Assignment // launch, relaunch: what to run
	subnet  string             // launch: the network of its address
	epoch   string             // launch: the history that wants it
}

// place is all that shares a disk: what is wanted of an instance, and its
// machines by rising generation.
type place struct {
	wanted   *muster.Assignment // nil: the assignments leave it out
	machines []driver.Status
}

// diskOf is a machine's name without its generation: what is kept between them.
func diskOf(machine string) string {
	i := strings.LastIndexByte(machine, '-')
	if i < 0 {
		return machine
	}
	return machine[:i]
}

// places sorts what is wanted and what is there by disk.
func places(desired *muster.Assignments, machines []driver.Status) map[string]*place {
	all := map[string]*place{}
	at := func(disk string) *place {
		if all[disk] == nil {
			all[disk] = &place{}
		}
		return all[disk]
	}
	for _, m := range machines {
		p := at(m.Spec.Disk)
		p.machines = append(p.machines, m)
	}
	if desired != nil {
		for _, w := range desired.Instances {
			at(diskOf(w.Machine)).wanted = w
		}
	}
	for _, p := range all {
		slices.SortFunc(p.machines, func(m, n driver.Status) int { return cmp.Compare(m.Spec.Generation, n.Spec.Generation) })
	}
	return all
}

// marks are what the agent knows of machines beyond what a driver tells.
type marks struct {
	failed map[string]string // a launch could not be tried
	remove map[string]bool   // named by the registry as terminated
	revive map[string]bool   // ended by a restart of the host
}

// over reports whether the registry named a machine of a disk as terminated.
// Assignments that still want it are from before that.
func (k marks) over(disk string) bool {
	for machine := range k.remove {
		if diskOf(machine) == disk {
			return true
		}
	}
	return false
}

// next decides what to do first at a place. What the assignments leave out is
// left alone, and so is a generation from after theirs.
func (p *place) next(k marks) (verb, string) {
	for _, m := range p.machines {
		if k.remove[m.Spec.Machine] {
			return remove, m.Spec.Machine
		}
	}
	if p.wanted == nil || k.over(diskOf(p.wanted.Machine)) {
		return nothing, ""
	}
	switch p.wanted.Desired {
	case muster.WantTerminated:
		if len(p.machines) > 0 {
			return remove, p.machines[0].Spec.Machine
		}
	case muster.WantStopped:
		for _, m := range p.machines {
			if m.State != driver.Exited && m.Spec.Generation <= p.wanted.Generation {
				return stop, m.Spec.Machine
			}
		}
	case muster.WantRunning:
		if !p.wanted.Ended {
			return p.run(k)
		}
	}
	return nothing, ""
}

// run brings the wanted generation to run.
func (p *place) run(k marks) (verb, string) {
	for _, m := range p.machines {
		if m.Spec.Generation < p.wanted.Generation && m.State != driver.Exited {
			return stop, m.Spec.Machine
		}
	}
	switch newest := p.newest(); {
	case k.failed[p.wanted.Machine] != "":
		return nothing, ""
	case newest == nil || newest.Spec.Generation < p.wanted.Generation:
		return launch, p.wanted.Machine
	case newest.State == driver.Running && p.machines[0].State == driver.Exited:
		return remove, p.machines[0].Spec.Machine // its successor's launch was cut off before it could do that
	case newest.State == driver.Exited && (newest.Cut || k.revive[newest.Spec.Machine]) && p.revives(*newest):
		return relaunch, p.wanted.Machine
	}
	return nothing, ""
}

// drained is the running machine of a place that is to end and goes on for a while before, and
// for how much longer; fetched is when what is wanted was. nil: there is none.
func (p *place) drained(k marks, fetched time.Time) (machine *driver.Status, left time.Duration) {
	if p.wanted == nil || p.wanted.Ended || k.over(diskOf(p.wanted.Machine)) {
		return nil, 0
	}
	if left = p.wanted.Drain - time.Since(fetched); left <= 0 {
		return nil, 0
	}
	for i := range p.machines {
		m := &p.machines[i]
		ends := p.wanted.Desired != muster.WantRunning || m.Spec.Generation < p.wanted.Generation
		if ends && m.State == driver.Running && m.Spec.Generation <= p.wanted.Generation {
			return m, left
		}
	}
	return nil, 0
}

// revives reports whether a machine is to run again, should a restart of the
// host have ended it or its launch have been cut off.
func (p *place) revives(m driver.Status) bool {
	w := p.wanted
	return w != nil && w.Machine == m.Spec.Machine && w.Desired == muster.WantRunning && !w.Ended
}

// lives reports whether any generation has not ended.
func (p *place) lives() bool {
	return slices.ContainsFunc(p.machines, func(m driver.Status) bool { return m.State != driver.Exited })
}

// prepares reports whether a generation is being launched.
func (p *place) prepares() bool {
	return slices.ContainsFunc(p.machines, func(m driver.Status) bool { return m.State == driver.Preparing })
}

// newest is the machine of the highest generation, nil when there is none.
func (p *place) newest() *driver.Status {
	if len(p.machines) == 0 {
		return nil
	}
	return &p.machines[len(p.machines)-1]
}
