package registry

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/scheduler"
)

// listedRefusals is how many nodes' reasons NO_CAPACITY carries at most.
const listedRefusals = 100

// noAddress is why a node cannot take an instance though its addresses are fewer than it may have.
const noAddress = "its addresses are all in use or resting"

func (v View) candidates() iter.Seq[scheduler.Candidate] {
	return func(yield func(scheduler.Candidate) bool) {
		for n := range v.LiveNodes() {
			u := v.use(n.UID)
			if !yield(scheduler.Candidate{Node: n, Used: u.held, FreeAddresses: addressesPerNode - u.rows}) {
				return
			}
		}
	}
}

func ask(i *muster.Instance) scheduler.Ask {
	return scheduler.Ask{
		CPUPercent: i.CPULimit, MemoryMB: i.MemLimitMB, Image: i.BaseImage, Digest: i.ImageDigest,
		Selector: i.NodeSelector, Pinned: i.PinnedNode, HasAddress: i.Addr != "",
		Mounts: mountsOf(i),
	}
}

// need is what an instance asks of its node now, with the ports that services want which are
// not in the view yet.
func (v View) need(i *muster.Instance, services ...*muster.Service) scheduler.Ask {
	a := ask(i)
	a.Refuse = v.portTaken(append(services, v.servicesOf(i.ID)...))
	a.Digest, a.Mounts.Homes = v.digestOf(i.BaseImage), v.homes(i)
	return a
}

// place gives i a node, an address and its first machine name, or says why it
// cannot. i is a copy of the caller's.
func (r *Registry) place(v View, i *muster.Instance, services ...*muster.Service) scheduler.Verdict {
	need := v.need(i, services...)
	verdict := scheduler.Place(need, v.candidates(), r.opts.Scheduler)
	if verdict.Node == nil {
		return verdict
	}
	addr := r.freeAddress(v, verdict.Node)
	if addr == "" {
		return scheduler.Verdict{Refusals: []muster.Refusal{{NodeID: verdict.Node.ID, Reason: noAddress}}}
	}
	i.ImageDigest = need.Digest
	i.NodeUID, i.Addr, i.Reserved = verdict.Node.UID, addr, true
	i.Status, i.StatusReason, i.QueueDeadline = muster.Provisioning, "", nil
	i.Generation = 1
	i.Machine = machine(v, i)
	return verdict
}

// machine is the name of an instance's present generation on its node. One that
// was adopted keeps the first part of the name that it came with: its disk has that.
func machine(v View, i *muster.Instance) string {
	name := disk(i.Machine)
	if name == "" {
		name = shortID(v.meta().clusterUID) + "-" + string(i.ID)
	}
	return fmt.Sprintf("%s-%d", name, i.Generation)
}

// disk is a machine's name without its generation.
func disk(machine string) string { return machine[:max(strings.LastIndexByte(machine, '-'), 0)] }

// shortID is the first part of every machine name of a cluster.
func shortID(clusterUID string) string { return clusterUID[:min(6, len(clusterUID))] }

// noCapacity says why no node fits.
func noCapacity(i *muster.Instance, v scheduler.Verdict) *muster.Error {
	e := muster.Errorf(muster.NoCapacity, "no node fits a %s instance of the image %q: see each node's reason; add a node, or launch with queue: true to wait", i.Type, i.BaseImage)
	switch {
	case len(v.Refusals) == 0:
		e.Message = "no node is registered: start an agent, or launch with queue: true to wait for one"
	case v.Never:
		e.Message = fmt.Sprintf("no node could ever hold a %s instance (%d %% of a core, %d MiB): add a larger node, or choose a smaller type", i.Type, i.CPULimit, i.MemLimitMB)
	}
	listed := v.Refusals[:min(len(v.Refusals), listedRefusals)]
	e.Details = map[string]any{"nodes": slices.Clone(listed), "nodeCount": len(v.Refusals)}
	return e
}

// placePending places those of the waiting instances that fit now, in order of
// their ids, each in a mutation of its own. Capacity only shrinks on the way, so
// what did not fit once is not tried again: a long queue of the same costs little.
func (r *Registry) placePending(b *batch) {
	waiting := slices.Collect(b.view.InstancesIn(muster.Pending))
	full := map[string]bool{}
	for _, i := range waiting {
		need := fmt.Sprint(ask(i), b.view.portsOf(i.ID)) // maps print sorted
		if full[need] {
			continue
		}
		placed := i.Clone()
		err := b.run(itself, func(v View, w *Writes) error {
			if full[need] = r.place(v, placed).Node == nil; !full[need] {
				w.Assign(placed, "placed on a node")
			}
			return nil
		})
		if err != nil {
			r.Logger.Error("placing a waiting instance failed", "instance", i.ID, "err", err)
		}
	}
	b.frees = false
}
