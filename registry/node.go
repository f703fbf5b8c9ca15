package registry

import (
	"context"
	"slices"
	"time"

	"github.com/muster-cloud/muster"
)

// Node returns the node of that id or uid, or nil when there is none.
func (s Seen) Node(id string) *muster.Node { return s.view().LiveNode(id) }

// Nodes returns a page of the nodes in order of their id.
func (s Seen) Nodes(f *muster.NodeFilter, page muster.PageInput) (*muster.NodeConnection, error) {
	limit, err := page.Limit()
	if err != nil {
		return nil, err
	}
	after, err := parseEdge(page.After)
	if err != nil {
		return nil, err
	}
	v := s.view()
	matches := func(n *muster.Node) bool { return n.Live() && v.sight.node(n) && f.Matches(n) }
	from := rowsFrom[*muster.Node](v, tableNode, byName, muster.NodeID(after))
	if after == "" {
		from = v.Nodes()
	}
	nodes, info := take(where(from, func(n *muster.Node) bool { return string(n.ID) != after && matches(n) }), limit, after,
		func(n *muster.Node) string { return string(n.ID) })
	c := &muster.NodeConnection{Edges: make([]*muster.NodeEdge, 0, len(nodes)), PageInfo: info, Count: func() int { return count(where(v.Nodes(), matches)) }}
	for _, n := range nodes {
		c.Edges = append(c.Edges, &muster.NodeEdge{Cursor: edge(string(n.ID)), Node: n})
	}
	return c, nil
}

// Allocated returns what a node's instances hold.
func (r *Registry) Allocated(n *muster.Node) *muster.Capacity {
	held := r.View().use(n.UID).held
	return &held
}

// Free returns what a node has left for new instances, over-commit included.
func (r *Registry) Free(n *muster.Node) *muster.Capacity {
	u, total := r.View().use(n.UID), r.opts.Scheduler.Total(n)
	return &muster.Capacity{
		CPUPercent: max(total.CPUPercent-u.held.CPUPercent, 0),
		MemoryMB:   max(total.MemoryMB-u.held.MemoryMB, 0),
		Instances:  max(addressesPerNode-u.rows, 0),
	}
}

// DesiredRevision returns the newest revision at which what the node should run changed.
func (r *Registry) DesiredRevision(n *muster.Node) int64 { return r.View().use(n.UID).desiredRevision }

// Assignments returns what the registry wants of a node, in full.
func (r *Registry) Assignments(ctx context.Context, uid muster.NodeUID, incarnation int64) (*muster.Assignments, error) {
	v := r.View()
	n, err := r.speaker(ctx, v, uid, incarnation)
	if err != nil {
		return nil, err
	}
	a := &muster.Assignments{Epoch: v.meta().epoch, DesiredRevision: v.use(uid).desiredRevision, Subnet: n.Subnet, Instances: []*muster.Assignment{}, RemoveVolumes: append([]string{}, n.RemovingVolumes...)}
	now := r.opts.Now()
	for i := range v.InstancesOn(uid) {
		if i.Status != muster.Terminated && i.Status != muster.Unknown {
			a.Instances = append(a.Instances, v.assignment(i, now))
		}
	}
	return a, nil
}

func (v View) assignment(i *muster.Instance, now time.Time) *muster.Assignment {
	longest := time.Duration(0)
	services := v.servicesOf(i.ID)
	for _, s := range services {
		longest = max(longest, s.DrainFor)
	}
	return &muster.Assignment{
		ID: i.ID, Generation: i.Generation, Machine: i.Machine, Desired: i.Desired,
		Ended: i.Desired == muster.WantRunning && (i.Status == muster.Stopped || i.Status == muster.Failed),
		Name:  i.Name, BaseImage: i.BaseImage, ImageDigest: i.ImageDigest, Command: i.Command, Env: i.Env,
		CPULimit: i.CPULimit, MemLimitMB: i.MemLimitMB, Addr: i.Addr, Volumes: i.Volumes, DiskLimitMB: i.DiskLimitMB,
		Drain: left(i.DrainUntil, longest, now), Services: serviceAssignments(services, now),
	}
}

// CordonNode keeps new instances off a node.
func (r *Registry) CordonNode(ctx context.Context, id, reason string) (*muster.Node, int64, error) {
	if err := muster.CheckText("reason", reason, muster.MaxReasonBytes); err != nil {
		return nil, 0, err
	}
	if reason == "" {
		reason = "cordoned"
	}
	return r.setSchedulable(ctx, id, false, reason)
}

// UncordonNode lets new instances onto a node again.
func (r *Registry) UncordonNode(ctx context.Context, id string) (*muster.Node, int64, error) {
	return r.setSchedulable(ctx, id, true, "uncordoned")
}

func (r *Registry) setSchedulable(ctx context.Context, id string, schedulable bool, reason string) (*muster.Node, int64, error) {
	return r.changeNode(ctx, id, func(_ View, w *Writes, n *muster.Node) (*muster.Node, error) {
		if n.Schedulable == schedulable && (n.Drain == nil || !schedulable) {
			return n, nil
		}
		after := n.Clone()
		after.Schedulable = schedulable
		if schedulable {
			after.Drain = nil // uncordoning cancels it
		}
		w.Node(after, reason)
		return after, nil
	})
}

// RemoveNode takes a node out; its instances are LOST and its uid is refused
// from then on.
func (r *Registry) RemoveNode(ctx context.Context, id string) (*muster.Node, int64, error) {
	return r.changeNode(ctx, id, func(v View, w *Writes, n *muster.Node) (*muster.Node, error) {
		r.takeOut(v, w, n, muster.Removed, "removed by "+muster.PrincipalOf(ctx).Name)
		return w.steps[0].node, nil
	})
}

// ForgetNode clears every trace of a machine that is gone, or that was removed: its name
// is free, its keys are revoked, its instances are terminated. A machine with a copy of
// its state can then register as itself again, one that was reinstalled joins anew. id is
// its uid, or its id when no other node that is not forgotten has that. CONFLICT: it still
// beats. Of a machine that joined and never registered, or was gone for long, there are
// only the keys: the node is nil then.
func (r *Registry) ForgetNode(ctx context.Context, id string) (*muster.Node, int64, error) {
	if err := muster.CheckID("id", id); err != nil {
		return nil, 0, err
	}
	var out *muster.Node
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		v.sight = sightOf(ctx)
		reason := "forgotten by " + muster.PrincipalOf(ctx).Name
		n, err := v.forgettable(id)
		if muster.CodeOf(err) == muster.NotFound && r.forgetAwaited(v, w, id, reason) {
			out = nil
			return nil
		}
		if err != nil {
			return err
		}
		out = n.Clone()
		out.Status, out.StatusReason, out.Forgotten = muster.Pruned, reason, true
		w.Node(out, reason)
		for i := range v.InstancesOn(n.UID) {
			if i.Status != muster.Terminated {
				gone := i.Clone()
				gone.Desired = muster.WantTerminated
				r.terminated(gone, "its node "+string(n.ID)+" is gone for good")
				w.Instance(gone, gone.StatusReason)
			}
		}
		for k := range v.KeysOf(n.UID) {
			if k.RevokedAt == nil {
				r.revoke(w, k, reason)
			}
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

// forgetAwaited revokes the keys of nodes that are not in the registry, and reports
// whether there were any.
func (r *Registry) forgetAwaited(v View, w *Writes, id, reason string) bool {
	any := false
	for k := range r.awaited(v, id) {
		if v.sight.all() || slices.ContainsFunc(k.Scope.Nodes, func(n string) bool { return v.sight.scope.HasNode(muster.NodeID(n)) }) {
			r.revoke(w, k, reason)
			any = true
		}
	}
	return any
}

// forgettable returns the node to forget.
func (v View) forgettable(id string) (*muster.Node, error) {
	var found *muster.Node
	for n := range v.Nodes() {
		if n.Forgotten || string(n.UID) != id && string(n.ID) != id || !v.sight.node(n) {
			continue
		}
		if found != nil {
			return nil, muster.Errorf(muster.Conflict, "several nodes have had the id %s: give the uid, such as %s", id, n.UID)
		}
		found = n
	}
	switch {
	case found == nil:
		return nil, muster.Errorf(muster.NotFound, "no node %q: there is nothing to forget", id)
	case found.Status == muster.Healthy:
		return nil, muster.Errorf(muster.Conflict, "node %s beats: stop its agent, or take it out with muster node remove %s, and forget it then", found.ID, found.ID)
	}
	return found, nil
}

// changeNode runs a change of one live node.
func (r *Registry) changeNode(ctx context.Context, id string, change func(View, *Writes, *muster.Node) (*muster.Node, error)) (*muster.Node, int64, error) {
	if err := muster.CheckID("id", id); err != nil {
		return nil, 0, err
	}
	var out *muster.Node
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		v.sight = sightOf(ctx)
		n := v.LiveNode(id)
		if n == nil {
			return noNode(id)
		}
		var err error
		out, err = change(v, w, n)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

func noNode(id string) *muster.Error {
	return muster.Errorf(muster.NotFound, "there is no node %q: see the list of nodes", id)
}

// uidOf resolves a filter's node id or uid: the node of that name that is in the
// registry, else the one that left it last, so that a filter sees it leave.
func (v View) uidOf(id *string) (muster.NodeUID, error) {
	if id == nil {
		return "", nil
	}
	if err := muster.CheckID("nodeId", *id); err != nil {
		return "", err
	}
	var found *muster.Node
	for n := range rows[*muster.Node](v, tableNode, byName, muster.NodeID(*id)) {
		if found == nil || n.Live() || !found.Live() && n.Revision > found.Revision {
			found = n
		}
	}
	if found == nil {
		found = v.NodeByUID(muster.NodeUID(*id))
	}
	if found == nil || !v.sight.node(found) {
		return "", noNode(*id)
	}
	return found.UID, nil
}
