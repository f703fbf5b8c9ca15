package scheduler

import (
	"fmt"
	"iter"

	"github.com/muster-cloud/muster"
)

// DefaultCPUOvercommit is how many times a node's CPUs may be promised.
const DefaultCPUOvercommit = 2.0

// Options sets the rules. The zero value works.
type Options struct {
	CPUOvercommit float64 // how many times a node's CPUs may be promised; 0: DefaultCPUOvercommit
}

// Ask is what an instance needs.
type Ask struct {
	CPUPercent int // of one core
	MemoryMB   int
	Image      string
	Digest     string         // of the image, when the server has it: any node can get it; empty: only a node that has it
	Selector   muster.Map     // labels that the node has to have
	Pinned     muster.NodeUID // only this node; empty: any
	// HasAddress says that the instance has its address already, as one has that starts again.
	HasAddress bool
	Mounts     Mounts
	// Refuse says what else speaks against a node, and "" when nothing does; nil: nothing.
	Refuse func(*muster.Node) string
}

// Candidate is a node with what is in use on it.
type Candidate struct {
	Node          *muster.Node
	Used          muster.Capacity
	FreeAddresses int
}

// Verdict is where an instance goes: a Node, or why none.
type Verdict struct {
	Node     *muster.Node
	Refusals []muster.Refusal
	// Never says that no candidate could hold it even if it were empty.
	Never bool
}

// Total returns what n offers, over-commit included.
func (o Options) Total(n *muster.Node) muster.Capacity {
	factor := o.CPUOvercommit
	if factor <= 0 {
		factor = DefaultCPUOvercommit
	}
	return muster.Capacity{CPUPercent: int(float64(n.CPUCount) * 100 * factor), MemoryMB: n.MemoryMB}
}

// Place chooses the node with the most left after it, where one that has the image
// counts as emptier than it is; of equals, the one with fewer instances, then the first. The candidates are walked a second time for
// the reasons when nothing fits.
func Place(ask Ask, candidates iter.Seq[Candidate], o Options) Verdict {
	var best Candidate
	bestScore := -1.0
	for c := range candidates {
		if o.refuse(ask, c).Reason != "" {
			continue
		}
		s := o.score(ask, c)
		if s > bestScore || s == bestScore && c.Used.Instances < best.Used.Instances {
			best, bestScore = c, s
		}
	}
	if best.Node != nil {
		return Verdict{Node: best.Node}
	}
	return o.explain(ask, candidates)
}

func (o Options) explain(ask Ask, candidates iter.Seq[Candidate]) Verdict {
	v := Verdict{}
	couldHold, eligible := false, false
	for c := range candidates {
		v.Refusals = append(v.Refusals, o.refuse(ask, c))
		if c.Node.Role != muster.Compute || ask.Pinned != "" && ask.Pinned != c.Node.UID {
			continue
		}
		eligible = true
		total := o.Total(c.Node)
		couldHold = couldHold || total.CPUPercent >= ask.CPUPercent && total.MemoryMB >= ask.MemoryMB
	}
	v.Never = eligible && !couldHold
	return v
}

// Refusals goes through the nodes that cannot take the ask, in the order of the
// candidates, with the reason of each.
func Refusals(ask Ask, candidates iter.Seq[Candidate], o Options) iter.Seq[muster.Refusal] {
	return func(yield func(muster.Refusal) bool) {
		for c := range candidates {
			if r := o.refuse(ask, c); r.Reason != "" && !yield(r) {
				return
			}
		}
	}
}

// refuse says why c cannot take the ask, with no reason when it can.
func (o Options) refuse(ask Ask, c Candidate) muster.Refusal {
	r := muster.Refusal{NodeID: c.Node.ID, Reason: o.unfit(ask, c)}
	if r.Reason != "" {
		return r
	}
	total := o.Total(c.Node)
	if free := max(total.MemoryMB-c.Used.MemoryMB, 0); free < ask.MemoryMB {
		r.Reason = fmt.Sprintf("%d MiB of memory are free, %d are needed", free, ask.MemoryMB)
		r.Need, r.Have = new(ask.MemoryMB), new(free)
		return r
	}
	if free := max(total.CPUPercent-c.Used.CPUPercent, 0); free < ask.CPUPercent {
		r.Reason = fmt.Sprintf("%d %% of a core are free, %d are needed", free, ask.CPUPercent)
		r.Need, r.Have = new(ask.CPUPercent), new(free)
	}
	return r
}

// unfit says what speaks against c however much is free on it, and "" when nothing does.
func (o Options) unfit(ask Ask, c Candidate) string {
	n := c.Node
	switch {
	case ask.Pinned != "" && n.UID != ask.Pinned:
		return "another node was asked for"
	case n.Role != muster.Compute:
		return fmt.Sprintf("its role is %s, not %s", n.Role, muster.Compute)
	case n.Status != muster.Healthy:
		return fmt.Sprintf("it is %s", n.Status)
	case !n.Schedulable:
		return "it is cordoned"
	case !n.Labels.Matches(ask.Selector):
		return "it lacks the labels that are asked for"
	case ask.Digest == "" && !n.HasImage(ask.Image, ""):
		return fmt.Sprintf("it lacks the image %q", ask.Image)
	case !ask.HasAddress && c.FreeAddresses <= 0:
		return "it has no free address"
	}
	if reason := ask.Mounts.refuse(n, ask.Pinned != ""); reason != "" {
		return reason
	}
	if ask.Refuse != nil {
		return ask.Refuse(n)
	}
	return ""
}

// imageBonus is how much more another node must have left, as a share, before it
// is taken though it would have to get the image first.
const imageBonus = 0.2

// score is the smaller of the shares of memory and CPU that are left after it,
// and more for a node that has the image.
func (o Options) score(ask Ask, c Candidate) float64 {
	total := o.Total(c.Node)
	memory := float64(total.MemoryMB-c.Used.MemoryMB-ask.MemoryMB) / float64(max(total.MemoryMB, 1))
	cpu := float64(total.CPUPercent-c.Used.CPUPercent-ask.CPUPercent) / float64(max(total.CPUPercent, 1))
	score := min(memory, cpu)
	if c.Node.HasImage(ask.Image, ask.Digest) {
		score += imageBonus
	}
	return score
}
