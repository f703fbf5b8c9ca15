package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

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
	fetched time.Time         // when that was
	busy    map[string]step   // by disk
	notes   map[string]string // what is waited for, by machine
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
		if newest := p.newest(); m.State == driver.Exited && newest.State != driver.Exited {
			continue // its successor lives, and it is removed
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
		Addr: w.Addr, CPULimit: w.CPULimit, MemLimitMB: w.MemLimitMB, BaseImage: w.BaseImage, ImageDigest: w.ImageDigest,
	}
	switch reason := v.failed[w.Machine]; {
	case starting && doing.machine == w.Machine:
		r.Reason = v.notes[w.Machine]
	case reason != "":
		r.Status, r.Reason = muster.Failed, reason
	case w.Desired == muster.WantStopped && p.lives():
		r.Status = muster.Stopping // an earlier generation still holds what it holds
	case w.Desired == muster.WantStopped:
		r.Status, r.Reason = muster.Stopped, "stopped before it was launched"
	default:
		if former, _ := p.drained(v.marks, v.fetched); former != nil {
			r.Reason = "what ran before is draining"
		}
	}
	return r
}

// report tells of a machine that is there.
func (v *view) report(p *place, m driver.Status, doing step) muster.InstanceReportInput {
	s := &m.Spec
	r := muster.InstanceReportInput{
		Machine: s.Machine, Epoch: s.Epoch, ID: muster.InstanceID(s.Instance), Generation: s.Generation,
		Addr: bare(s.Addr), CPULimit: s.CPUPercent, MemLimitMB: s.MemoryMB, BaseImage: s.Image, ImageDigest: s.ImageDigest,
		Volumes: s.Volumes, DiskLimitMB: s.DiskLimitMB,
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
	if !m.Cut && !v.revive[m.Spec.Machine] || v.failed[m.Spec.Machine] != "" {
		return false
	}
	return v.desired == nil || p.revives(m)
}

// bare is an address without its prefix length.
func bare(addr string) string {
	addr, _, _ = strings.Cut(addr, "/")
	return addr
}

// inventory is everything that there is to report, without saying who reports.
func (a *Agent) inventory(ctx context.Context) (*muster.ReportInstancesInput, error) {
	a.mu.Lock() // before listing: what changes meanwhile makes another report due
	told := a.state.told
	v := view{
		desired: a.state.desired, fetched: a.state.fetched, busy: maps.Clone(a.state.busy), notes: a.notesLocked(),
		marks: marks{failed: maps.Clone(a.state.failed), remove: maps.Clone(a.state.remove), revive: maps.Clone(a.state.revive)},
	}
	a.mu.Unlock()
	machines, err := a.o.Driver.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the machines: %w", err)
	}
	r := &muster.ReportInstancesInput{Instances: fit(v.reports(machines))}
	a.withServices(r.Instances)
	// Not what the manager of services has not been told of: that none of a service is there is news as well.
	if told != nil {
		r.Epoch, r.AppliedRevision = told.Epoch, told.DesiredRevision
	}
	if host, ok := a.o.Driver.(driver.Images); ok {
		if r.Images, err = host.Images(ctx); err != nil {
			return nil, fmt.Errorf("list the images: %w", err)
		}
		r.Images = r.Images[:min(len(r.Images), muster.MaxImages)] // more, and nothing of the report were taken
	}
	return r, a.inventoryVolumes(ctx, r)
}

// maxOutputs bounds the console output in one report, in bytes of JSON: a
// registry takes no more than 1 MiB in all.
const maxOutputs = 512 << 10

// fit shortens the output of what has ended, all alike, until it fits into a
// report.
func fit(reports []muster.InstanceReportInput) []muster.InstanceReportInput {
	total, ended := 0, 0
	for k := range reports {
		if reports[k].Output != "" {
			total, ended = total+encoded(reports[k].Output), ended+1
		}
	}
	if total <= maxOutputs {
		return reports
	}
	for k := range reports {
		r := &reports[k]
		for encoded(r.Output) > maxOutputs/ended {
			r.Output = strings.ToValidUTF8(r.Output[len(r.Output)/4+1:], "")
		}
	}
	return reports
}

// encoded is how long a text is as JSON.
func encoded(text string) int {
	b, err := json.Marshal(text)
	if err != nil {
		return 0 // a string always can be
	}
	return len(b)
}
