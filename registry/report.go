package registry

import (
	"context"
	"slices"

	"github.com/muster-cloud/muster"
)

// ReportInstances takes a node's whole inventory, instance by instance: what
// cannot be is counted and ignored, never a reason to refuse the rest. It
// returns the machines that are known to be terminated, which the agent removes.
func (r *Registry) ReportInstances(ctx context.Context, in muster.ReportInstancesInput) ([]string, int64, error) {
	if err := in.Validate(); err != nil {
		return nil, 0, err
	}
	known := r.View().NodeByUID(in.UID)
	if known == nil {
		return nil, 0, unknownNode(in.UID)
	}
	var remove []string
	revision, err := r.observed(ctx, known.ID, func(v View, w *Writes) error {
		n, err := r.speaker(ctx, v, in.UID, in.Incarnation)
		if err != nil {
			return err
		}
		if u := v.use(n.UID); u.reportIncarnation == in.Incarnation && in.Sequence <= u.reportSequence {
			remove = []string{}
			return nil // a newer one has been applied
		}
		n = reportedNode(w, n, &in)
		w.mark(reportMark{uid: n.UID, incarnation: in.Incarnation, sequence: in.Sequence})
		remove = r.applyReport(v, w, n, &in)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	r.heard(in.UID)
	return remove, revision, nil
}

// reportedNode brings the node itself up to what its agent reports, and returns it.
func reportedNode(w *Writes, n *muster.Node, in *muster.ReportInstancesInput) *muster.Node {
	reason := ""
	if images := sorted(in.Images); in.Images != nil && !slices.Equal(images, n.Images) {
		n = n.Clone()
		n.Images, reason = images, "its images changed"
	}
	if in.Volumes != nil {
		if after, news := reportedVolumes(n, in.Volumes); news {
			n, reason = after, "its volumes changed"
		}
	}
	if reason != "" {
		w.Node(n, reason)
	}
	return n
}

// applyReport brings a node's instances up to what its agent reports. A machine
// is known by its disk, which all generations of an instance share, or else by the
// instance's id.
func (r *Registry) applyReport(v View, w *Writes, n *muster.Node, in *muster.ReportInstancesInput) (remove []string) {
	remove = []string{}
	here := map[string]*muster.Instance{}
	for i := range v.InstancesOn(n.UID) {
		here[disk(i.Machine)] = i
	}
	reported := map[muster.InstanceID]bool{}
	applied := func(revision int64) bool { return in.Epoch == v.meta().epoch && in.AppliedRevision >= revision }
	next := v.meta().sequences[muster.InstanceSequence]
	for k := range in.Instances {
		m := &in.Instances[k]
		i := here[disk(m.Machine)]
		if i == nil && v.stranger(m) {
			next++
			w.Instance(r.foundOn(n, m, muster.InstanceIDOf(next)), "found on a node")
			continue
		}
		if i == nil {
			i = v.Instance(m.ID)
		}
		switch {
		case i == nil || i.Status == muster.Terminated:
			remove = append(remove, m.Machine)
		case i.NodeUID != n.UID:
			r.ignore(n, m, "it belongs to another node")
		default:
			reported[i.ID] = true
			r.observe(w, n, i, m)
			r.observeServices(v, w, i, m)
		}
	}
	there := servicesIn(in)
	for i := range v.InstancesOn(n.UID) {
		ends := r.endServices(v, w, i, func(s *muster.Service) bool { return !there[s.ID] && applied(s.DesiredRevision) })
		if !ends && !reported[i.ID] && (applied(i.DesiredRevision) || i.Status == muster.Unknown) {
			r.miss(w, i)
		}
	}
	return remove
}

// stranger reports whether a machine is not one that this registry assigned:
// its id was given out by another history, or not yet.
func (v View) stranger(m *muster.InstanceReportInput) bool {
	number, named := m.ID.Number()
	return !named || m.Epoch != v.meta().epoch || number > v.meta().sequences[muster.InstanceSequence]
}

func (r *Registry) ignore(n *muster.Node, m *muster.InstanceReportInput, why string) {
	r.ignored.Add(1)
	r.Logger.Warn("part of a report was ignored", "node", n.ID, "instance", m.ID, "generation", m.Generation, "status", m.Status, "reason", why)
}

// foundOn makes an UNKNOWN instance, with an id of its own, of a machine that
// this registry knows nothing of: it is kept until someone decides.
func (r *Registry) foundOn(n *muster.Node, m *muster.InstanceReportInput, id muster.InstanceID) *muster.Instance {
	return &muster.Instance{
		ID: id, Name: m.Machine, NodeUID: n.UID, Machine: m.Machine,
		Type: typeOf(m), CPULimit: m.CPULimit, MemLimitMB: m.MemLimitMB, BaseImage: m.BaseImage, ImageDigest: m.ImageDigest,
		Command: []string{}, EnvNames: []string{}, Labels: muster.Map{}, NodeSelector: muster.Map{}, Volumes: append([]muster.VolumeMount{}, m.Volumes...), DiskLimitMB: m.DiskLimitMB, Env: muster.Map{},
		Status: muster.Unknown, StatusReason: "found on node " + string(n.ID) + "; this registry did not launch it: adopt or terminate it",
		Desired: muster.WantRunning, Generation: m.Generation, Addr: m.Addr, PID: m.PID,
		Reserved: m.Status != muster.Stopped && m.Status != muster.Failed, CreatedAt: stamp(r.opts.Now()),
	}
}

// typeOf is the smallest type that a stranger's limits fit into.
func typeOf(m *muster.InstanceReportInput) muster.InstanceType {
	types := muster.InstanceTypes()
	for _, t := range types {
		if m.CPULimit <= t.CPULimit && m.MemLimitMB <= t.MemLimitMB {
			return t.Type
		}
	}
	return types[len(types)-1].Type
}

// observe brings one instance up to what was reported of its present generation.
func (r *Registry) observe(w *Writes, n *muster.Node, i *muster.Instance, m *muster.InstanceReportInput) {
	s := said(i, m)
	switch {
	case m.Generation < i.Generation || i.Status == muster.Terminating || i.Status == muster.Unknown:
		return // its agent has not come to what is desired yet, or nobody has said what is
	case m.Generation > i.Generation:
		r.ignore(n, m, "its generation is from the future")
		return
	case s == "":
		r.ignore(n, m, "it is "+string(i.Status)+" here")
		return
	}
	next := i.Clone()
	next.Status = s
	now := stamp(r.opts.Now())
	switch s {
	case muster.Running:
		next.StatusReason, next.PID, next.Reserved, next.DrainUntil = "", m.PID, true, nil
		if i.StartedAt == nil || i.Status != muster.Running {
			next.StartedAt = &now
		}
	case muster.Stopped, muster.Failed:
		next.StatusReason, next.PID, next.Reserved, next.DrainUntil = m.Reason, nil, false, nil
		if (i.Status == muster.Stopping || i.Status == muster.Stopped) && m.Reason == driverStopped {
			next.StatusReason = i.StatusReason // by whom, and why, says more
		}
		next.ExitCode, next.Output = m.ExitCode, m.Output
		if i.Status != s {
			next.EndedAt = &now
		}
	case muster.Provisioning:
		next.Reserved, next.StatusReason = true, m.Reason
	case muster.Stopping:
		next.Reserved = true
	}
	if !sameInstance(i, next) {
		w.Instance(next, changeReason(next))
	}
}

// said is the status that an instance has by a report; "" when that says nothing of its
// present generation, or what cannot be.
func said(i *muster.Instance, m *muster.InstanceReportInput) muster.InstanceStatus {
	if m.Generation != i.Generation || i.Status == muster.Terminating || i.Status == muster.Unknown {
		return ""
	}
	if s := statusOf(i, m.Status); s != "" && i.Status.MayBecome(s) {
		return s
	}
	return ""
}

// statusOf is the status that a report gives an instance: one that is being
// stopped stays so until it has ended, and has then been stopped however it
// ended. "" is what cannot be.
func statusOf(i *muster.Instance, reported muster.InstanceStatus) muster.InstanceStatus {
	ended := reported == muster.Stopped || reported == muster.Failed
	switch {
	case i.Status == muster.Stopping && ended:
		return muster.Stopped
	case i.Status == muster.Stopping && (reported == muster.Running || reported == muster.Provisioning || reported == muster.Stopping):
		return muster.Stopping
	case i.Status == muster.Stopped && ended:
		return muster.Stopped
	case (i.Status == muster.Stopped || i.Status == muster.Failed) && !ended:
		return "" // what it held has been given away: only start brings it back
	case i.Status == muster.Running && reported == muster.Provisioning:
		return muster.Running // starting again after the host's reboot
	case ended || reported == muster.Running || reported == muster.Provisioning || reported == muster.Stopping:
		return reported
	}
	return ""
}

// driverStopped is what drivers say of what ended because it was told to.
const driverStopped = "stopped"

func changeReason(i *muster.Instance) string {
	if i.StatusReason != "" {
		return i.StatusReason
	}
	if i.Status == muster.Running {
		return "its process runs"
	}
	return "reported by its node"
}

func sameInstance(a, b *muster.Instance) bool {
	return a.Status == b.Status && a.StatusReason == b.StatusReason && a.Reserved == b.Reserved &&
		equalPointees(a.PID, b.PID) && equalPointees(a.ExitCode, b.ExitCode) && a.Output == b.Output
}

func equalPointees(a, b *int) bool { return a == b || a != nil && b != nil && *a == *b }

// miss draws the conclusion from an instance's absence in a report that has
// applied what was desired of it.
func (r *Registry) miss(w *Writes, i *muster.Instance) {
	next := i.Clone()
	switch i.Status {
	case muster.Terminating:
		r.terminated(next, "its node confirmed that it is gone")
	case muster.Unknown:
		r.terminated(next, "its node no longer has it")
	case muster.Stopping:
		now := stamp(r.opts.Now())
		next.Status, next.StatusReason, next.EndedAt = muster.Stopped, "its node no longer has it", &now
		next.Reserved, next.PID, next.DrainUntil = false, nil, nil
	case muster.Provisioning, muster.Running, muster.Lost:
		now := stamp(r.opts.Now())
		next.Status, next.StatusReason, next.EndedAt = muster.Failed, "its node no longer has it", &now
		next.Reserved, next.PID, next.DrainUntil = false, nil, nil
	default:
		return
	}
	w.Instance(next, next.StatusReason)
}
