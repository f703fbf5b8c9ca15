package registry

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"time"

	"github.com/muster-cloud/muster"
)

// Node returns the node of that id or uid, or nil when there is none.
func (r *Registry) Node(id string) *muster.Node { return r.View().LiveNode(id) }

// Nodes returns a page of the nodes in order of their id.
func (r *Registry) Nodes(f *muster.NodeFilter, page muster.PageInput) (*muster.NodeConnection, error) {
	limit, err := page.Limit()
	if err != nil {
		return nil, err
	}
	after, err := parseEdge(page.After)
	if err != nil {
		return nil, err
	}
	v := r.View()
	matches := func(n *muster.Node) bool { return n.Live() && f.Matches(n) }
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
func (r *Registry) Assignments(uid muster.NodeUID, incarnation int64) (*muster.Assignments, error) {
	v := r.View()
	n := v.NodeByUID(uid)
	switch {
	case n == nil || !n.Live() || incarnation > n.Incarnation:
		return nil, unknownNode(uid)
	case incarnation < n.Incarnation:
		return nil, superseded(n)
	}
	a := &muster.Assignments{Epoch: v.meta().epoch, DesiredRevision: v.use(uid).desiredRevision, Subnet: n.Subnet, Instances: []*muster.Assignment{}}
	for i := range v.InstancesOn(uid) {
		if i.Status != muster.Terminated && i.Status != muster.Unknown {
			a.Instances = append(a.Instances, assignment(i))
		}
	}
	return a, nil
}

func assignment(i *muster.Instance) *muster.Assignment {
	return &muster.Assignment{
		ID: i.ID, Generation: i.Generation, Machine: i.Machine, Desired: i.Desired,
		Ended: i.Desired == muster.WantRunning && (i.Status == muster.Stopped || i.Status == muster.Failed),
		Name:  i.Name, BaseImage: i.BaseImage, Command: i.Command, Env: i.Env,
		CPULimit: i.CPULimit, MemLimitMB: i.MemLimitMB, Addr: i.Addr,
	}
}

// Registered is the outcome of a registration.
type Registered struct {
	Node     *muster.Node
	Remove   []string // machines that are known to be terminated
	Revision int64
}

// RegisterNode takes a node in, or takes it back, with its whole inventory, in
// one commit. ALREADY_EXISTS: another machine has the name; SUPERSEDED: a newer
// start of the agent is registered; DUPLICATE_IDENTITY: another live agent has
// the identity; FORBIDDEN: an operator removed the node.
func (r *Registry) RegisterNode(ctx context.Context, in muster.RegisterNodeInput) (*Registered, error) {
	if err := in.Validate(); err != nil {
		return nil, err
	}
	if err := r.checkIdentity(ctx, &in); err != nil {
		return nil, err
	}
	fresh := newUID()
	out := &Registered{}
	revision, err := r.observed(ctx, in.ID, func(v View, w *Writes) error {
		before, err := registering(v, &in)
		if err != nil {
			return err
		}
		after, reason, err := r.registered(v, before, &in, fresh)
		if err != nil {
			return err
		}
		out.Node, out.Remove = after, nil
		if before == nil || !sameNode(before, after) {
			w.Node(after, reason)
		} else {
			out.Node = before
		}
		w.mark(reportMark{uid: after.UID, incarnation: in.Incarnation})
		out.Remove = r.applyReport(v, w, after, &muster.ReportInstancesInput{
			UID: after.UID, Incarnation: in.Incarnation, Epoch: in.Epoch, AppliedRevision: in.AppliedRevision, Instances: in.Instances,
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.Revision = revision
	r.beats.stamp(out.Node.UID, time.Now())
	return out, nil
}

func newUID() muster.NodeUID {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return muster.NodeUID("n-" + hex.EncodeToString(raw[:]))
}

// registering returns the node that registers again, or nil for a new one.
func registering(v View, in *muster.RegisterNodeInput) (*muster.Node, error) {
	var before *muster.Node
	if in.UID != nil {
		before = v.NodeByUID(*in.UID)
	}
	if before != nil {
		switch {
		case before.Status == muster.Removed:
			return nil, muster.Errorf(muster.Forbidden, "node %s was removed by an operator: let it join again with muster node forget %s, or delete the agent's state directory so that it comes as a new node", before.ID, before.UID)
		case in.Incarnation < before.Incarnation:
			return nil, superseded(before)
		}
	}
	other := v.LiveNode(string(in.ID))
	if before == nil && other != nil && sameStart(other, in) {
		return other, nil // its first registration was taken, and the answer got lost
	}
	if other != nil && (before == nil || other.UID != before.UID) {
		return nil, muster.Errorf(muster.AlreadyExists, "another machine (%s) is registered as node %s: give this agent another --id, or remove that node first", other.Addr, in.ID)
	}
	return before, nil
}

// sameStart reports whether an agent without a uid is the very start of the
// agent that registered the node: its machine, its boot, its counter.
func sameStart(n *muster.Node, in *muster.RegisterNodeInput) bool {
	return in.UID == nil && in.BootID != "" && n.BootID == in.BootID && n.Incarnation == in.Incarnation &&
		n.Addr == in.Addr && n.Port == in.Port && n.Hostname == in.Hostname
}

func (r *Registry) registered(v View, before *muster.Node, in *muster.RegisterNodeInput, fresh muster.NodeUID) (*muster.Node, string, error) {
	n, reason := &muster.Node{UID: fresh, Schedulable: true, RegisteredAt: stamp(r.opts.Now())}, "registered"
	if before != nil {
		n, reason = before.Clone(), "registered again"
	} else {
		subnet, err := r.freeSubnet(v)
		if err != nil {
			return nil, "", err
		}
		n.Subnet = subnet
	}
	n.ID, n.Hostname, n.Addr, n.Port, n.Role = in.ID, in.Hostname, in.Addr, in.Port, in.Role
	n.CPUCount, n.MemoryMB, n.Labels = in.CPUCount, in.MemoryMB, orEmpty(in.Labels)
	n.Images, n.Version, n.BootID, n.Incarnation = sorted(in.Images), in.Version, in.BootID, in.Incarnation
	n.Status, n.StatusReason = muster.Healthy, ""
	return n, reason, nil
}

func sameNode(a, b *muster.Node) bool {
	return a.ID == b.ID && a.Hostname == b.Hostname && a.Addr == b.Addr && a.Port == b.Port && a.Role == b.Role &&
		a.CPUCount == b.CPUCount && a.MemoryMB == b.MemoryMB && len(a.Labels) == len(b.Labels) && a.Labels.Matches(b.Labels) &&
		slices.Equal(a.Images, b.Images) && a.Version == b.Version && a.BootID == b.BootID &&
		a.Incarnation == b.Incarnation && a.Status == b.Status
}

func orEmpty(m muster.Map) muster.Map {
	if m == nil {
		return muster.Map{}
	}
	return m
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	if s = slices.Compact(s); s == nil {
		return []string{}
	}
	return s
}

// checkIdentity asks the address that a known node had until now who is there,
// when a registration comes from another one while the old one still beats.
func (r *Registry) checkIdentity(ctx context.Context, in *muster.RegisterNodeInput) error {
	if in.UID == nil {
		return nil
	}
	n := r.View().NodeByUID(*in.UID)
	if n == nil || !n.Live() || n.Addr == in.Addr && n.Port == in.Port {
		return nil
	}
	if last := r.beats.seen(n.UID); last.IsZero() || time.Since(last) > r.opts.Liveness.Interval*3/2 {
		return nil
	}
	uid, incarnation, err := r.Agents.Identify(ctx, n.Addr, n.Port)
	if err != nil || uid != n.UID || incarnation != n.Incarnation {
		return nil
	}
	return muster.Errorf(muster.DuplicateIdentity, "node %s runs at %s:%d and answers there: this agent has a copy of its state directory; delete it so that it comes as a node of its own", n.ID, n.Addr, n.Port)
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
	return r.changeNode(ctx, id, func(_ View, w *Writes, n *muster.Node) *muster.Node {
		if n.Schedulable == schedulable {
			return n
		}
		after := n.Clone()
		after.Schedulable = schedulable
		w.Node(after, reason)
		return after
	})
}

// RemoveNode takes a node out; its instances are LOST and its uid is refused
// from then on.
func (r *Registry) RemoveNode(ctx context.Context, id string) (*muster.Node, int64, error) {
	n, revision, err := r.changeNode(ctx, id, func(v View, w *Writes, n *muster.Node) *muster.Node {
		r.takeOut(v, w, n, muster.Removed, "removed by "+muster.PrincipalOf(ctx).Name)
		return w.steps[0].node
	})
	if err == nil {
		r.beats.forget(n.UID)
	}
	return n, revision, err
}

// ForgetNode lets a removed node join again as itself: its uid is no longer
// refused. id is its uid, or its id when no other removed node had that.
func (r *Registry) ForgetNode(ctx context.Context, id string) (*muster.Node, int64, error) {
	if err := muster.CheckID("id", id); err != nil {
		return nil, 0, err
	}
	var out *muster.Node
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		n, err := v.removedNode(id)
		if err != nil {
			return err
		}
		out = n.Clone()
		out.Status, out.StatusReason = muster.Pruned, "forgotten by "+muster.PrincipalOf(ctx).Name
		w.Node(out, out.StatusReason)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

func (v View) removedNode(id string) (*muster.Node, error) {
	var found *muster.Node
	for n := range v.Nodes() {
		if n.Status != muster.Removed || string(n.UID) != id && string(n.ID) != id {
			continue
		}
		if found != nil {
			return nil, muster.Errorf(muster.Conflict, "several nodes with the id %s were removed: give the uid, such as %s", id, n.UID)
		}
		found = n
	}
	if found == nil {
		return nil, muster.Errorf(muster.NotFound, "no node %q was removed: there is nothing to forget", id)
	}
	return found, nil
}

// changeNode runs a change of one live node.
func (r *Registry) changeNode(ctx context.Context, id string, change func(View, *Writes, *muster.Node) *muster.Node) (*muster.Node, int64, error) {
	if err := muster.CheckID("id", id); err != nil {
		return nil, 0, err
	}
	var out *muster.Node
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		n := v.LiveNode(id)
		if n == nil {
			return noNode(id)
		}
		out = change(v, w, n)
		return nil
	})
	return out, revision, err
}

func noNode(id string) *muster.Error {
	return muster.Errorf(muster.NotFound, "no node %q: see the list of nodes for those there are", id)
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
	if found == nil {
		return "", noNode(*id)
	}
	return found.UID, nil
}
