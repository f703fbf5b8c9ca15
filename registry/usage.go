package registry

import (
	"time"

	"github.com/muster-cloud/muster"
)

// usage is what a node's agent told last of what is used there. It is in memory
// only, and replaced as a whole.
type usage struct {
	at       time.Time // with its monotonic part
	node     muster.Usage
	machines map[string]muster.Usage
}

// newUsage takes what a beat told; what cannot be is left out rather than refused,
// since a beat is worth more. sent is when it did by its own clock, if it said so.
func newUsage(in *muster.UsageInput, sent *time.Time, at time.Time) *usage {
	told, ahead := stamp(at), time.Duration(0)
	if sent != nil {
		ahead = at.Sub(*sent)
	}
	u := &usage{
		at: at, machines: make(map[string]muster.Usage, min(len(in.Machines), muster.MaxMachineUsages)),
		node: muster.Usage{CPUPercent: max(in.CPUPercent, 0), MemoryMB: max(in.MemoryMB, 0), At: told},
	}
	for _, m := range in.Machines[:min(len(in.Machines), muster.MaxMachineUsages)] {
		if muster.CheckText("machine", m.Machine, muster.MaxNameBytes) == nil {
			used := muster.Usage{CPUPercent: max(m.CPUPercent, 0), MemoryMB: max(m.MemoryMB, 0), MemoryPeakMB: m.MemoryPeakMB, At: told}
			if m.DiskMB != nil && m.DiskAt != nil {
				measured := stamp(m.DiskAt.Add(ahead))
				if measured.After(told) {
					measured = told
				}
				used.DiskMB, used.DiskAt = m.DiskMB, &measured
			}
			u.machines[m.Machine] = used
		}
	}
	return u
}

func (b *beats) setUsage(uid muster.NodeUID, u *usage) {
	one := b.make(uid)
	one.mu.Lock()
	defer one.mu.Unlock()
	one.usage = u
}

// usageOf is what a node told lately; nil when it did not.
func (r *Registry) usageOf(uid muster.NodeUID) *usage {
	one := r.beats.of(uid)
	if one == nil {
		return nil
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.usage == nil || time.Since(one.usage.at) > r.opts.Liveness.UnhealthyAfter {
		return nil
	}
	return one.usage
}

// NodeUsage is what a node uses; nil when its agent has not told lately.
func (r *Registry) NodeUsage(n *muster.Node) *muster.Usage {
	u := r.usageOf(n.UID)
	if u == nil || !n.Live() {
		return nil
	}
	return &u.node
}

// InstanceUsage is what an instance uses; nil when it does not run, or its node has
// not told lately.
func (r *Registry) InstanceUsage(i *muster.Instance) *muster.Usage {
	if i.Status != muster.Running && i.Status != muster.Stopping {
		return nil
	}
	u := r.usageOf(i.NodeUID)
	if u == nil {
		return nil
	}
	if used, ok := u.machines[i.Machine]; ok {
		return &used
	}
	return nil
}
