package agent

import (
	"cmp"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// The reasons of drivers for what did not end by itself.
const (
	reasonStopped   = "stopped"
	reasonRestarted = "the host was restarted"
)

// view is what goes into a report beside the machines.
type view struct {
	desired *muster.Assignments
	busy    map[string]step // by disk
	marks
}

// reports tells of everything that is on the node, and of everything that is
// wanted on it and not there yet: absence from it means that a machine is gone.
func (v *view) reports(machines []driver.Status) []muster.InstanceReportInput {
	all := make([]muster.InstanceReportInput, 0, len(machines))
	for disk, p := range places(v.desired, machines) {
		all = append(all, v.reportPlace(p, v.busy[disk])...)
	}
	slices.SortFunc(all, func(a, b muster.InstanceReportInput) int { return cmp.Compare(a.Machine, b.Machine) })
	return all
}

func (v *view) reportPlace(p *place, doing step) []muster.InstanceReportInput {
	var out []muster.InstanceReportInput
	coming := v.coming(p, doing)
	for _, m := range p.machines {
		if coming != nil && (m.Spec.Machine == coming.Machine || m.State == driver.Exited) {
			continue // what it becomes is reported, or what takes its disk over
		}
		out = append(out, v.report(p, m, doing))
	}
	if coming != nil {
		out = append(out, *coming)
	}
	return out
}

// coming is the report of a wanted generation that no machine stands for yet;
// nil when one does, or none should.
func (v *view) coming(p *place, doing step) *muster.InstanceReportInput {
	w := p.wanted
	if w == nil || w.Ended || w.Desired == muster.WantTerminated {
		return nil
	}
	starting := doing.verb == launch || doing.verb == relaunch
	if newest := p.newest(); newest != nil && newest.Spec.Generation >= w.Generation && !(starting && doing.machine == newest.Spec.Machine) {
		return nil
	}
	r := &muster.InstanceReportInput{
		Machine: w.Machine, Epoch: v.desired.Epoch, ID: w.ID, Generation: w.Generation, Status: muster.Provisioning,
		Addr: w.Addr, CPULimit: w.CPULimit, MemLimitMB: w.MemLimitMB, BaseImage: w.BaseImage,
	}
	switch reason := v.failed[w.Machine]; {
	case starting && doing.machine == w.Machine:
	case reason != "":
		r.Status, r.Reason = muster.Failed, reason
	case w.Desired == muster.WantStopped:
		r.Status, r.Reason = muster.Stopped, "stopped before it was launched"
	}
	return r
}

// report tells of a machine that is there.
func (v *view) report(p *place, m driver.Status, doing step) muster.InstanceReportInput {
	s := &m.Spec
	r := muster.InstanceReportInput{
		Machine: s.Machine, Epoch: s.Epoch, ID: muster.InstanceID(s.Instance), Generation: s.Generation,
		Addr: bare(s.Addr), CPULimit: s.CPUPercent, MemLimitMB: s.MemoryMB, BaseImage: s.Image,
	}
	mine := p.wanted != nil && p.wanted.Machine == s.Machine
	if mine {
		r.Epoch = v.desired.Epoch // also one that an earlier history assigned, once this one wants it
	}
	switch {
	case m.State == driver.Running:
		r.Status, r.PID = muster.Running, &m.PID
		if doing.machine == s.Machine && (doing.verb == stop || doing.verb == remove) {
			r.Status = muster.Stopping
		}
	case m.State == driver.Preparing, v.revives(p, m):
		r.Status = muster.Provisioning
	default:
		r.Status, r.Reason, r.ExitCode, r.Output = muster.Failed, m.Reason, m.ExitCode, m.Output
		asked := mine && p.wanted.Desired != muster.WantRunning
		switch {
		case v.failed[s.Machine] != "":
			r.Reason = v.failed[s.Machine]
		case asked || m.Reason == reasonStopped || m.ExitCode != nil && *m.ExitCode == 0:
			r.Status = muster.Stopped
		}
	}
	return r
}

// revives reports whether a machine that ended will be started again, as far as
// can be said: saying that it ended would settle that it is not.
func (v *view) revives(p *place, m driver.Status) bool {
	if !v.revive[m.Spec.Machine] || v.failed[m.Spec.Machine] != "" {
		return false
	}
	return v.desired == nil || p.revives(m)
}

// bare is an address without its prefix length.
func bare(addr string) string {
	addr, _, _ = strings.Cut(addr, "/")
	return addr
}
