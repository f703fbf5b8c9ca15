package registry

import (
	"slices"

	"github.com/muster-cloud/muster"
)

// matchNode tells whether a filter by node delivers a change, and whether
// because the node has left what the filter selects.
func matchNode(c *muster.Change, f *muster.NodeFilter) (deliver, left bool) {
	if c.Kind != muster.KindNode {
		return false, false
	}
	now := f.Matches(c.Node) && c.Node.Live() && !c.Deleted
	if now || c.PreviousRevision == 0 {
		return now, false
	}
	before := *c.Node
	before.Status = muster.NodeStatus(c.PreviousStatus)
	if c.Previous != nil {
		before.Labels, before.Role, before.Schedulable = c.Previous.Labels, c.Previous.Role, c.Previous.Schedulable
	}
	was := before.Live() && f.Matches(&before)
	return was, was
}

// matchInstance is matchNode for instances. Of an instance's filterable fields
// only its status, labels and node ever change.
func matchInstance(c *muster.Change, f *muster.InstanceFilter) (deliver, left bool) {
	if c.Kind != muster.KindInstance {
		return false, false
	}
	now := f.Matches(c.Instance) && !c.Deleted
	if now || c.PreviousRevision == 0 {
		return now, false
	}
	before := *c.Instance
	before.Status = muster.InstanceStatus(c.PreviousStatus)
	if c.Previous != nil {
		before.Labels, before.NodeUID = c.Previous.Labels, c.Previous.NodeUID
	}
	was := f.Matches(&before)
	return was, was
}

// matchService is matchNode for services. Where they are never changes, but an
// instance may be placed later; health is judged at delivery.
func matchService(c *muster.Change, matches func(*muster.Service) bool) (deliver, left bool) {
	if c.Kind != muster.KindService {
		return false, false
	}
	now := matches(c.Service) && !c.Deleted
	if now || c.PreviousRevision == 0 {
		return now, false
	}
	before := *c.Service
	before.Status = muster.ServiceStatus(c.PreviousStatus)
	if c.Previous != nil {
		before.Health = c.Previous.Health
	}
	was := matches(&before)
	return was, was
}

// healthScope is a resolved filter of health.
type healthScope struct {
	registry *Registry
	kinds    []muster.ChangeKind
	nodeID   *string
	instance muster.InstanceID
	service  muster.ServiceID
}

func (s Seen) health(f *muster.HealthFilter) (*healthScope, error) {
	h := &healthScope{registry: s.r}
	if f == nil {
		return h, nil
	}
	h.kinds, h.nodeID = f.Kinds, f.NodeID
	v := s.view()
	if _, err := v.uidOf(f.NodeID); err != nil {
		return nil, err
	}
	if f.InstanceID != nil {
		if h.instance = *f.InstanceID; v.Instance(h.instance) == nil {
			return nil, noInstance(h.instance)
		}
	}
	if f.ServiceID != nil {
		o := v.Service(*f.ServiceID)
		if o == nil {
			return nil, noService(*f.ServiceID)
		}
		if h.instance != "" && h.instance != o.InstanceID {
			return nil, muster.InvalidField("serviceId", "the service %s is in %s; leave instanceId out", o.ID, o.InstanceID)
		}
		h.service, h.instance = o.ID, o.InstanceID
	}
	return h, nil
}

// node is the node that is asked for, resolved anew each time: who joins later
// may mean another one by the same name. "" is any.
func (h *healthScope) node() muster.NodeUID {
	uid, err := h.registry.View().uidOf(h.nodeID)
	if err != nil {
		return goneNode
	}
	return uid
}

func (h *healthScope) on(uid muster.NodeUID) bool {
	asked := h.node()
	return asked == "" || asked == uid
}

// hostOf is the node of the instance that is asked for; "" while it waits.
func (h *healthScope) hostOf() muster.NodeUID {
	if i := h.registry.View().Instance(h.instance); i != nil {
		return i.NodeUID
	}
	return ""
}

func (h *healthScope) wants(k muster.ChangeKind) bool {
	return len(h.kinds) == 0 || slices.Contains(h.kinds, k)
}

func (h *healthScope) wantsNode(n *muster.Node) bool {
	return h.wants(muster.KindNode) && h.on(n.UID) &&
		(h.instance == "" || h.hostOf() == n.UID)
}

func (h *healthScope) wantsInstance(i *muster.Instance) bool {
	return h.wants(muster.KindInstance) && h.on(i.NodeUID) &&
		(h.instance == "" || h.instance == i.ID)
}

func (h *healthScope) wantsService(s *muster.Service) bool {
	return h.wants(muster.KindService) && (h.service == "" || h.service == s.ID) && (h.instance == "" || h.instance == s.InstanceID) &&
		h.on(nodeOfInstance(h.registry.View().rawInstance(s.InstanceID)))
}

// wantsCluster: a filter by node or instance leaves the cluster's conditions out.
func (h *healthScope) wantsCluster() bool {
	return h.wants(muster.KindCluster) && h.nodeID == nil && h.instance == ""
}

func (h *healthScope) match(c *muster.Change) (deliver, left bool) {
	if c.Kind == muster.KindService {
		turned := c.Previous == nil || c.Previous.Health != c.Service.Health || c.Deleted
		return turned && h.wantsService(c.Service), c.Deleted || c.Service.Gone()
	}
	if c.Status == c.PreviousStatus && !c.Deleted {
		return false, false
	}
	switch c.Kind {
	case muster.KindNode:
		return h.wantsNode(c.Node), !c.Node.Live()
	case muster.KindInstance:
		return h.wantsInstance(c.Instance), c.Deleted
	case muster.KindCluster:
		return h.wantsCluster(), false
	}
	return false, false
}

func (h *healthScope) present(v View) []walk {
	return []walk{v.presentConditions(h.wantsCluster()), v.presentNodes(h.wantsNode), v.presentInstances(h.wantsInstance), v.presentServices(func(s *muster.Service) bool { return !s.Gone() && h.wantsService(s) })}
}
