package registry

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"github.com/muster-cloud/muster"
)

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
	if err := ownNode(ctx, in.ID, value(in.UID)); err != nil {
		return nil, err
	}
	fresh := newUID()
	joined := muster.PrincipalOf(ctx).NodeUID
	if joined != "" {
		in.UID, fresh = &joined, joined
		for k := range r.View().KeysOf(joined) {
			in.Role = cmp.Or(k.NodeRole, in.Role)
		}
	}
	if joined == "" { // else the key says who it is
		recognise(r.View(), &in)
	}
	if err := r.checkIdentity(ctx, &in); err != nil {
		return nil, err
	}
	out := &Registered{}
	revision, err := r.observed(ctx, in.ID, func(v View, w *Writes) error {
		if joined == "" {
			recognise(v, &in)
		}
		before, err := registering(ctx, v, &in)
		if err != nil {
			return err
		}
		after, reason, err := r.registered(v, before, &in, fresh)
		if err != nil {
			return err
		}
		if before == nil && joined != "" {
			v.welcome(after)
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
	return out, nil
}

// value is what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func newUID() muster.NodeUID {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return muster.NodeUID("n-" + hex.EncodeToString(raw[:]))
}

// recognise gives an agent that does not know its uid, since the answer with it got lost, that of the node which
// it registered, by its birth token. An agent with a uid of another registry is recognised like that too.
func recognise(v View, in *muster.RegisterNodeInput) {
	if in.BirthToken == "" || in.UID != nil && v.NodeByUID(*in.UID) != nil {
		return
	}
	if n := v.nodeByBirth(birthHash(in)); n != nil {
		in.UID = &n.UID
	}
}

// birthHash is what is stored of a birth token; empty without one.
func birthHash(in *muster.RegisterNodeInput) string {
	if in.BirthToken == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(in.BirthToken))
	return hex.EncodeToString(sum[:])
}

// registering returns the node that registers again, or nil for a new one.
func registering(ctx context.Context, v View, in *muster.RegisterNodeInput) (*muster.Node, error) {
	var before *muster.Node
	if in.UID != nil {
		before = v.NodeByUID(*in.UID)
	}
	if before != nil {
		// A key for some names must not take a node over that has another one.
		if err := ownNode(ctx, before.ID, before.UID); err != nil {
			return nil, err
		}
		switch {
		case before.Status == muster.Removed:
			return nil, muster.Errorf(muster.Forbidden, "node %s was removed by an operator: let it join again with muster node forget %s, or delete the agent's state directory so that it comes as a new node", before.ID, before.UID)
		case in.Incarnation < before.Incarnation:
			return nil, superseded(before)
		}
	}
	other := v.LiveNode(string(in.ID))
	if other != nil && (before == nil || other.UID != before.UID) {
		return nil, muster.Errorf(muster.AlreadyExists, "another machine (%s) is registered as node %s: give this agent another --id, or remove that node first", other.Addr, in.ID)
	}
	return before, nil
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
	n.ID, n.Hostname, n.Addr, n.Port, n.Secure, n.Role = in.ID, in.Hostname, in.Addr, in.Port, in.Secure, in.Role
	n.BirthHash = birthHash(in)
	n.CPUCount, n.MemoryMB, n.AgentLabels = in.CPUCount, in.MemoryMB, orEmpty(in.Labels)
	if n.LabelEdits == nil {
		n.LabelEdits = muster.Edits{}
	}
	n.Labels = n.AgentLabels.Edited(n.LabelEdits)
	n, _ = reportedVolumes(n, in.Volumes)
	n.HostPaths, n.DiskLimits = sorted(in.HostPaths), in.DiskLimits
	n.Images, n.Version, n.BootID, n.Incarnation = sorted(in.Images), in.Version, in.BootID, in.Incarnation
	n.Status, n.StatusReason, n.Forgotten = muster.Healthy, "", false
	return n, reason, nil
}

// welcome gives a node the labels that the token says by which it joined.
func (v View) welcome(n *muster.Node) {
	for k := range v.KeysOf(n.UID) {
		for t := range v.Tokens() {
			if !slices.ContainsFunc(t.Used, func(u muster.TokenUse) bool { return u.Key == k.ID }) {
				continue
			}
			for name, value := range t.Labels {
				n.LabelEdits[name] = &value
			}
			n.Labels = n.AgentLabels.Edited(n.LabelEdits)
		}
	}
}

func sameNode(a, b *muster.Node) bool {
	return a.ID == b.ID && a.Hostname == b.Hostname && a.Addr == b.Addr && a.Port == b.Port && a.Secure == b.Secure && a.Role == b.Role &&
		a.CPUCount == b.CPUCount && a.MemoryMB == b.MemoryMB && maps.Equal(a.AgentLabels, b.AgentLabels) &&
		slices.Equal(a.Images, b.Images) && slices.Equal(a.Volumes, b.Volumes) && slices.Equal(a.HostPaths, b.HostPaths) && a.DiskLimits == b.DiskLimits && a.Version == b.Version && a.BootID == b.BootID &&
		a.Incarnation == b.Incarnation && a.Status == b.Status && a.BirthHash == b.BirthHash
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
	if n != nil {
		if err := ownNode(ctx, n.ID, n.UID); err != nil {
			return err
		}
	}
	if n == nil || !n.Live() || n.Addr == in.Addr && n.Port == in.Port {
		return nil
	}
	if last := r.beats.seen(n.UID); last.IsZero() || time.Since(last) > r.opts.Liveness.Interval*3/2 {
		return nil
	}
	uid, incarnation, err := r.Agents.Identify(ctx, n)
	if err != nil || uid != n.UID || incarnation != n.Incarnation {
		return nil
	}
	return muster.Errorf(muster.DuplicateIdentity, "node %s runs at %s:%d and answers there: this agent has a copy of its state directory; delete it so that it comes as a node of its own", n.ID, n.Addr, n.Port)
}
