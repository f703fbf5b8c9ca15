package registry

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/scheduler"
)

// VolumesOn returns the volumes of a node in order of their name.
func (r *Registry) VolumesOn(n *muster.Node) []*muster.Volume {
	return slices.Collect(volumesOf(n))
}

func volumesOf(n *muster.Node) iter.Seq[*muster.Volume] {
	return func(yield func(*muster.Volume) bool) {
		for _, name := range n.Volumes {
			if !yield(&muster.Volume{Name: name, NodeUID: n.UID, Removing: slices.Contains(n.RemovingVolumes, name)}) {
				return
			}
		}
	}
}

// Volumes returns a page of the volumes in order of their name; with a node's id or
// uid only those on it.
func (s Seen) Volumes(nodeID *string, page muster.PageInput) (*muster.VolumeConnection, error) {
	limit, err := page.Limit()
	if err != nil {
		return nil, err
	}
	after, err := parseEdge(page.After)
	if err != nil {
		return nil, err
	}
	v := s.view()
	uid, err := v.uidOf(nodeID)
	if err != nil {
		return nil, err
	}
	var all []*muster.Volume
	for n := range v.storing() {
		if uid == "" || uid == n.UID {
			all = slices.AppendSeq(all, volumesOf(n))
		}
	}
	slices.SortFunc(all, func(a, b *muster.Volume) int { return strings.Compare(volumeKey(a), volumeKey(b)) })
	past := where(slices.Values(all), func(o *muster.Volume) bool { return volumeKey(o) > after })
	volumes, info := take(past, limit, after, volumeKey)
	c := &muster.VolumeConnection{Edges: make([]*muster.VolumeEdge, 0, len(volumes)), PageInfo: info, Count: func() int { return len(all) }}
	for _, o := range volumes {
		c.Edges = append(c.Edges, &muster.VolumeEdge{Cursor: edge(volumeKey(o)), Node: o})
	}
	return c, nil
}

// volumeKey orders volumes by name; no name has a slash.
func volumeKey(o *muster.Volume) string { return o.Name + "/" + string(o.NodeUID) }

// storing walks the nodes that volumes are on: also those that were pruned, which
// can come back with them.
func (v View) storing() iter.Seq[*muster.Node] {
	return where(v.Nodes(), func(n *muster.Node) bool { return n.Status != muster.Removed && !n.Forgotten && v.sight.node(n) })
}

// VolumeUsers returns the instances on a volume's node that use it, also those that
// are stopped, in order of their number.
func (r *Registry) VolumeUsers(o *muster.Volume) []*muster.Instance {
	return slices.AppendSeq([]*muster.Instance{}, r.View().usersOf(o.NodeUID, o.Name))
}

func (v View) usersOf(uid muster.NodeUID, name string) iter.Seq[*muster.Instance] {
	return where(v.InstancesOn(uid), func(i *muster.Instance) bool { return i.Status != muster.Terminated && mounts(i, name) })
}

func mounts(i *muster.Instance, name string) bool {
	return slices.ContainsFunc(i.Volumes, func(m muster.VolumeMount) bool { return m.Name == name })
}

// RemoveVolume has a node delete a volume: it is Removing until the node confirms, and
// nothing new gets it from then on. CONFLICT: an instance uses it, or several nodes
// have one of that name and none was named.
func (r *Registry) RemoveVolume(ctx context.Context, in muster.RemoveVolumeInput) (*muster.Volume, int64, error) {
	if err := in.Validate(); err != nil {
		return nil, 0, err
	}
	var out *muster.Volume
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		v.sight = sightOf(ctx)
		n, err := v.nodeOfVolume(&in)
		if err != nil {
			return err
		}
		out = &muster.Volume{Name: in.Name, NodeUID: n.UID, Removing: true}
		if !n.HasVolume(in.Name) {
			return nil
		}
		if users := slices.Collect(v.usersOf(n.UID, in.Name)); len(users) > 0 {
			return muster.Errorf(muster.Conflict, "volume %s is used by %s: terminate what uses it first; stopping it is not enough", in.Name, listed(users))
		}
		after := n.Clone()
		after.RemovingVolumes = sorted(append(after.RemovingVolumes, in.Name))
		w.AssignNode(after, "its volume "+in.Name+" is to be removed")
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

// listed names some instances.
func listed(instances []*muster.Instance) string {
	const most = 5
	var ids []string
	for _, i := range instances[:min(len(instances), most)] {
		ids = append(ids, string(i.ID))
	}
	if more := len(instances) - most; more > 0 {
		ids = append(ids, fmt.Sprintf("%d more", more))
	}
	return strings.Join(ids, ", ")
}

// nodeOfVolume returns the one node that has a volume, or is removing it.
func (v View) nodeOfVolume(in *muster.RemoveVolumeInput) (*muster.Node, error) {
	uid, err := v.uidOf(in.NodeID)
	if err != nil {
		return nil, err
	}
	var found []*muster.Node
	for n := range v.storing() {
		if slices.Contains(n.Volumes, in.Name) && (uid == "" || uid == n.UID) {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 0:
		return nil, muster.Errorf(muster.NotFound, "there is no volume %q: see the list of volumes", in.Name)
	case 1:
		return found[0], nil
	}
	return nil, muster.Errorf(muster.Conflict, "the nodes %s and %s each have a volume %s: say which with nodeId", found[0].ID, found[1].ID, in.Name)
}

// unseenHome is what a volume's node is called for who does not see it.
const unseenHome muster.NodeID = "(another)"

// homes returns for each volume of an instance the nodes that have it, or that an
// instance which names it was placed on. Those that are out of sight are among them,
// without their names: a volume is one thing in the whole cluster.
func (v View) homes(i *muster.Instance) map[string][]*muster.Node {
	homes, seen := map[string][]*muster.Node{}, v.sight
	v.sight = sight{}
	for _, m := range i.Volumes {
		if m.Name == "" {
			continue
		}
		for n := range v.storing() {
			if n.HasVolume(m.Name) || count(where(v.usersOf(n.UID, m.Name), func(user *muster.Instance) bool { return user.ID != i.ID })) > 0 {
				if !seen.node(n) {
					n = &muster.Node{UID: n.UID, ID: unseenHome, Status: n.Status}
				}
				homes[m.Name] = append(homes[m.Name], n)
			}
		}
	}
	return homes
}

// mountsOf is what an instance needs of its node's directories.
func mountsOf(i *muster.Instance) scheduler.Mounts {
	m := scheduler.Mounts{DiskLimited: i.DiskLimitMB > 0}
	for _, mount := range i.Volumes {
		if mount.Name != "" {
			m.Volumes = append(m.Volumes, mount.Name)
		} else {
			m.HostPaths = append(m.HostPaths, mount.HostPath)
		}
	}
	return m
}

// reportedVolumes takes what a node's agent says of its volumes, and reports whether
// that is news. What is gone need not be removed any more.
func reportedVolumes(n *muster.Node, names []string) (*muster.Node, bool) {
	volumes := sorted(names)
	if slices.Equal(volumes, n.Volumes) {
		return n, false
	}
	after := n.Clone()
	after.Volumes = volumes
	after.RemovingVolumes = slices.DeleteFunc(after.RemovingVolumes, func(name string) bool { return !slices.Contains(volumes, name) })
	return after, true
}
