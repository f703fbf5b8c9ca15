package registry

import (
	"context"
	"iter"

	"github.com/muster-cloud/muster"
)

// sight is the part of the cluster that a caller's key is for. What is outside of it
// is not there: it is not listed, not found and not told of.
type sight struct {
	scope muster.KeyScope
	blind bool // nothing is seen
}

// sightOf is what the context's principal sees. A REGISTRAR reads nothing, also not by way
// of what its mutations give.
func sightOf(ctx context.Context) sight {
	switch p := muster.PrincipalOf(ctx); p.Role {
	case muster.Admin:
		return sight{}
	case muster.Registrar:
		return sight{blind: true}
	default:
		return sight{scope: p.Scope}
	}
}

// all reports whether everything is seen.
func (s sight) all() bool { return !s.blind && len(s.scope.Nodes) == 0 }

func (s sight) node(n *muster.Node) bool {
	return s.all() || !s.blind && n != nil && s.scope.HasNode(n.ID)
}

// instance: one that waits is seen by who sees the node that it is pinned to.
func (s sight) instance(v View, i *muster.Instance) bool {
	if s.all() {
		return true
	}
	if i == nil {
		return false
	}
	on := i.NodeUID
	if on == "" {
		on = i.PinnedNode
	}
	return s.node(v.NodeByUID(on))
}

// change: the server's own are seen by nobody.
func (s sight) change(v View, c *muster.Change) bool {
	switch {
	case c.Internal(), s.blind:
		return false
	case s.all():
		return true
	case c.Node != nil:
		return s.node(c.Node)
	case c.Instance != nil:
		return s.instance(v, c.Instance)
	case c.Service != nil:
		return s.instance(v, v.rawInstance(c.Service.InstanceID))
	}
	return true
}

// seen are those of the instances that the view shows.
func (v View) seen(all iter.Seq[*muster.Instance]) iter.Seq[*muster.Instance] {
	if v.sight.all() {
		return all
	}
	return where(all, func(i *muster.Instance) bool { return v.sight.instance(v, i) })
}

// Seen reads the state as a caller's key lets it.
type Seen struct {
	r     *Registry
	sight sight
}

// Seen returns the state as the context's principal sees it.
func (r *Registry) Seen(ctx context.Context) Seen { return Seen{r, sightOf(ctx)} }

func (s Seen) view() View {
	v := s.r.View()
	v.sight = s.sight
	return v
}

// Node returns the node of that id or uid, or nil when there is none.
func (r *Registry) Node(id string) *muster.Node { return Seen{r: r}.Node(id) }

// Nodes is Seen.Nodes of everything.
func (r *Registry) Nodes(f *muster.NodeFilter, page muster.PageInput) (*muster.NodeConnection, error) {
	return Seen{r: r}.Nodes(f, page)
}

// Instance returns the instance, or nil when there is none.
func (r *Registry) Instance(id muster.InstanceID) *muster.Instance { return Seen{r: r}.Instance(id) }

// Instances is Seen.Instances of everything.
func (r *Registry) Instances(f *muster.InstanceFilter, page muster.PageInput) (*muster.InstanceConnection, error) {
	return Seen{r: r}.Instances(f, page)
}

// ClusterHealth is Seen.ClusterHealth of everything.
func (r *Registry) ClusterHealth() *muster.ClusterHealth { return Seen{r: r}.ClusterHealth() }

// wholeCluster refuses a key that is for a part of the cluster what concerns all of it.
func wholeCluster(ctx context.Context) error {
	if sightOf(ctx).all() {
		return nil
	}
	p := muster.PrincipalOf(ctx)
	return muster.Errorf(muster.Forbidden, "the key %s (%s) is for a part of the nodes, and this concerns all of them: use a key without a scope", p.Key, p.Name)
}

// speaker returns the node that an agent speaks for. UNKNOWN_NODE: register again;
// SUPERSEDED: stop; FORBIDDEN: the key is another node's.
func (r *Registry) speaker(ctx context.Context, v View, uid muster.NodeUID, incarnation int64) (*muster.Node, error) {
	n := v.NodeByUID(uid)
	if n != nil {
		if err := ownNode(ctx, n.ID, n.UID); err != nil {
			return nil, err
		}
	}
	switch {
	case n == nil || !n.Live() || incarnation > n.Incarnation:
		return nil, unknownNode(uid)
	case incarnation < n.Incarnation:
		return nil, superseded(n)
	}
	return n, nil
}

// ownNode refuses a NODE key that speaks for a node which is not its own.
func ownNode(ctx context.Context, id muster.NodeID, uid muster.NodeUID) error {
	p := muster.PrincipalOf(ctx)
	if p.Role != muster.NodeAgent {
		return nil
	}
	if p.NodeUID != "" && uid != "" && p.NodeUID != uid || id != "" && !p.Scope.HasNode(id) {
		return muster.Errorf(muster.Forbidden, "the key %s (%s) is another node's: each agent uses the key that it got when it joined", p.Key, p.Name)
	}
	return nil
}
