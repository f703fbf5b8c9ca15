package registry

import (
	"fmt"

	"github.com/muster-cloud/muster"
)

// Writes collects what a mutation wants written. Nothing happens to the state
// before the committer has checked and applied the whole of it.
type Writes struct{ steps []step }

// step is one object's new state, or its end.
type step struct {
	node      *muster.Node
	instance  *muster.Instance
	condition *muster.Condition
	image     *muster.Image
	request   *muster.Request
	service   *muster.Service
	entry     *muster.Entry
	key       *muster.AccessKey
	token     *muster.JoinToken
	audit     *muster.AuditEntry
	reason    string
	// desired says that a node has something to do about it.
	desired bool
	deleted bool
	report  *reportMark
}

// reportMark remembers the newest report of a node.
type reportMark struct {
	uid                   muster.NodeUID
	incarnation, sequence int64
}

// Node puts a node: a copy that the caller made and does not touch again.
func (w *Writes) Node(n *muster.Node, reason string) {
	w.steps = append(w.steps, step{node: n, reason: reason})
}

// AssignNode puts a node and moves its desired revision.
func (w *Writes) AssignNode(n *muster.Node, reason string) {
	w.steps = append(w.steps, step{node: n, reason: reason, desired: true})
}

// Instance puts an instance: a copy that the caller made and does not touch again.
func (w *Writes) Instance(i *muster.Instance, reason string) {
	w.steps = append(w.steps, step{instance: i, reason: reason})
}

// Assign puts an instance and moves its node's desired revision.
func (w *Writes) Assign(i *muster.Instance, reason string) {
	w.steps = append(w.steps, step{instance: i, reason: reason, desired: true})
}

// Forget ends the record of an instance.
func (w *Writes) Forget(i *muster.Instance, reason string) {
	w.steps = append(w.steps, step{instance: i, reason: reason, deleted: true})
}

// Condition puts a condition of the cluster.
func (w *Writes) Condition(c *muster.Condition) {
	w.steps = append(w.steps, step{condition: c, reason: c.Reason})
}

// Image puts an image: one that the caller made and does not touch again.
func (w *Writes) Image(i *muster.Image, reason string) {
	w.steps = append(w.steps, step{image: i, reason: reason})
}

// ForgetImage ends the record of an image.
func (w *Writes) ForgetImage(i *muster.Image, reason string) {
	w.steps = append(w.steps, step{image: i, reason: reason, deleted: true})
}

// ForgetNode ends the record of a hidden node that nothing refers to.
func (w *Writes) ForgetNode(n *muster.Node, reason string) {
	w.steps = append(w.steps, step{node: n, reason: reason, deleted: true})
}

// Service puts a service: a copy that the caller made and does not touch again.
func (w *Writes) Service(s *muster.Service, reason string) {
	w.steps = append(w.steps, step{service: s, reason: reason})
}

// AssignService puts a service and moves its node's desired revision.
func (w *Writes) AssignService(s *muster.Service, reason string) {
	w.steps = append(w.steps, step{service: s, reason: reason, desired: true})
}

// ForgetService ends the record of a service.
func (w *Writes) ForgetService(s *muster.Service, reason string) {
	w.steps = append(w.steps, step{service: s, reason: reason, deleted: true})
}

// Entry puts an entry of the discovery feed: one that the caller made and does not touch again.
func (w *Writes) Entry(e *muster.Entry, reason string) {
	w.steps = append(w.steps, step{entry: e, reason: reason})
}

// ForgetEntry ends an entry of the discovery feed.
func (w *Writes) ForgetEntry(e *muster.Entry, reason string) {
	w.steps = append(w.steps, step{entry: e, reason: reason, deleted: true})
}

// Key puts an access key: a copy that the caller made and does not touch again.
func (w *Writes) Key(k *muster.AccessKey, reason string) {
	w.steps = append(w.steps, step{key: k, reason: reason})
}

// ForgetKey ends the record of a key.
func (w *Writes) ForgetKey(k *muster.AccessKey, reason string) {
	w.steps = append(w.steps, step{key: k, reason: reason, deleted: true})
}

// Token puts a join token: a copy that the caller made and does not touch again.
func (w *Writes) Token(t *muster.JoinToken, reason string) {
	w.steps = append(w.steps, step{token: t, reason: reason})
}

// ForgetToken ends the record of a join token.
func (w *Writes) ForgetToken(t *muster.JoinToken, reason string) {
	w.steps = append(w.steps, step{token: t, reason: reason, deleted: true})
}

// Audit appends an entry to the audit.
func (w *Writes) Audit(e *muster.AuditEntry) { w.steps = append(w.steps, step{audit: e}) }

// Request records a requestId.
func (w *Writes) Request(r *muster.Request) { w.steps = append(w.steps, step{request: r}) }

// forgetRequest drops a requestId from memory; the database has dropped it.
func (w *Writes) forgetRequest(r *muster.Request) {
	w.steps = append(w.steps, step{request: r, deleted: true})
}

func (w *Writes) mark(m reportMark) { w.steps = append(w.steps, step{report: &m}) }

// check refuses the whole of w when one of its transitions is not legal. That
// is a defect of a use case: callers' mistakes are refused by the use cases.
func (w *Writes) check(v View) error {
	nodes := map[muster.NodeUID]muster.NodeStatus{}
	instances := map[muster.InstanceID]muster.InstanceStatus{}
	services := map[muster.ServiceID]muster.ServiceStatus{}
	for _, s := range w.steps {
		switch {
		case s.node != nil && !s.deleted:
			before, seen := nodes[s.node.UID]
			if n := v.NodeByUID(s.node.UID); !seen && n != nil {
				before = n.Status
			}
			if !before.MayBecome(s.node.Status) {
				return fmt.Errorf("node %s may not go from %q to %q", s.node.ID, before, s.node.Status)
			}
			nodes[s.node.UID] = s.node.Status
		case s.instance != nil && !s.deleted:
			before, seen := instances[s.instance.ID]
			if i := v.Instance(s.instance.ID); !seen && i != nil {
				before = i.Status
			}
			if !before.MayBecome(s.instance.Status) {
				return fmt.Errorf("instance %s may not go from %q to %q", s.instance.ID, before, s.instance.Status)
			}
			instances[s.instance.ID] = s.instance.Status
		case s.service != nil && !s.deleted:
			before, seen := services[s.service.ID]
			if o := v.Service(s.service.ID); !seen && o != nil {
				before = o.Status
			}
			if !before.MayBecome(s.service.Status) {
				return fmt.Errorf("service %s may not go from %q to %q", s.service.ID, before, s.service.Status)
			}
			services[s.service.ID] = s.service.Status
		}
	}
	return nil
}
