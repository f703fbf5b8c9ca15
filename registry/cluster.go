package registry

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-cloud/muster"
)

// ClusterHealth returns how the cluster is: counts by status and the conditions
// that hold.
func (s Seen) ClusterHealth() *muster.ClusterHealth {
	v, r := s.view(), s.r
	nodes, instances := map[muster.NodeStatus]int{}, map[muster.InstanceStatus]int{}
	for n := range v.LiveNodes() {
		nodes[n.Status]++
	}
	for i := range v.Instances() {
		instances[i.Status]++
	}
	h := &muster.ClusterHealth{
		Status: muster.ClusterHealthy, Revision: v.Head().Revision,
		Nodes: tally(muster.NodeStatuses(), nodes), Instances: tally(muster.InstanceStatuses(), instances),
		Conditions: r.conditions(v), Brake: v.brake(),
	}
	bad := nodes[muster.Unhealthy] + instances[muster.Failed] + instances[muster.Lost] + instances[muster.Unknown]
	if bad > 0 || slices.ContainsFunc(h.Conditions, needsALook) {
		h.Status = muster.ClusterDegraded
	}
	return h
}

// needsALook: that the server has just started is told, and is nothing to mend; that it has
// no TLS is what somebody wants.
func needsALook(c *muster.Condition) bool {
	return c.Name != muster.StartupGrace && c.Name != muster.Insecure
}

func tally[S ~string](order []S, counts map[S]int) []*muster.StatusCount {
	out := []*muster.StatusCount{}
	for _, s := range order {
		if n := counts[s]; n > 0 {
			out = append(out, &muster.StatusCount{Status: string(s), Count: n})
		}
	}
	return out
}

// conditions returns those that hold: of the state, and those that are seen
// only while they hold.
func (r *Registry) conditions(v View) []*muster.Condition {
	out := []*muster.Condition{}
	for c := range v.Conditions() {
		if c.Status == muster.Holds {
			out = append(out, c)
		}
	}
	since, listening := r.listeningSince()
	if listening && time.Since(since) < r.opts.Liveness.UnhealthyAfter {
		out = append(out, &muster.Condition{
			Name: muster.StartupGrace, Status: muster.Holds, Since: stamp(since),
			Reason: fmt.Sprintf("the server has just started: no node expires before %s have passed", r.opts.Liveness.UnhealthyAfter),
		})
	}
	if err := r.Ready(); err != nil {
		out = append(out, &muster.Condition{Name: muster.ReadOnly, Status: muster.Holds, Since: stamp(r.opts.Now()), Reason: err.Error() + "; mutations are refused until then"})
	}
	if r.opts.Insecure != "" && listening {
		out = append(out, &muster.Condition{
			Name: muster.Insecure, Status: muster.Holds, Since: stamp(since),
			Reason: "--insecure: what is said to " + r.opts.Insecure + " is not encrypted, so whoever is on the way can read access keys, and use them",
		})
	}
	if reason, since := r.feed.lost(r.opts.Now()); reason != "" {
		out = append(out, &muster.Condition{Name: muster.FeedUnreachable, Status: muster.Holds, Since: stamp(since), Reason: reason + "; lookups go on from memory, and publishing waits"})
	}
	return append(out, r.flaws()...)
}

func (r *Registry) flaws() (out []*muster.Condition) {
	if r.Feed == nil {
		return nil
	}
	if reason, since := r.Feed.Flaw(); reason != "" {
		out = append(out, &muster.Condition{Name: muster.FeedFlawed, Status: muster.Holds, Since: stamp(since), Reason: reason})
	}
	return out
}

func (v View) brake() *muster.Condition {
	if c := v.Condition(muster.Brake); c != nil {
		return c
	}
	return &muster.Condition{Name: muster.Brake, Status: muster.Clear, Reason: "it has never held"}
}

func (r *Registry) listeningSince() (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.listening, !r.listening.IsZero()
}

// ServerInfo returns what this server is and where its history stands.
func (r *Registry) ServerInfo() *muster.ServerInfo {
	m := r.View().meta()
	since, _ := r.listeningSince()
	return &muster.ServerInfo{
		Version: r.opts.Version, ClusterUID: m.clusterUID, ClusterShortID: shortID(m.clusterUID),
		Epoch: m.epoch, Revision: m.head.Revision, Cursor: muster.Cursor{Epoch: m.epoch, Position: m.head},
		OldestRevision: r.Hub.Oldest().Revision, StartedAt: stamp(since),
		HeartbeatInterval: r.opts.Liveness.Interval, UnhealthyAfter: r.opts.Liveness.UnhealthyAfter, PruneAfter: r.opts.Liveness.PruneAfter,
	}
}

// Stats are counters since the registry was opened.
type Stats struct {
	Commits  int64 // database transactions
	Calls    int64 // mutations, refused ones included
	Splits   int64 // batches that were committed one by one
	Failures int64 // commits that the database refused
	Reloads  int64 // times that memory was loaded again
	Ignored  int64 // parts of reports that could not be
	Queued   int   // mutations that wait now
}

// Stats returns the counters.
func (r *Registry) Stats() Stats {
	c := r.commits
	return Stats{
		Commits: c.commits.Load(), Calls: c.calls.Load(), Splits: c.splits.Load(), Failures: c.failures.Load(),
		Reloads: c.reloads.Load(), Ignored: r.ignored.Load(), Queued: len(c.queue),
	}
}
