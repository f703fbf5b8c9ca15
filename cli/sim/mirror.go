package sim

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// mirror is the simulation's part of the cluster as subscriptions tell of it.
type mirror struct {
	mu        sync.Mutex
	nodes     map[muster.NodeUID]muster.NodeStatus
	instances map[muster.InstanceID]muster.InstanceStatus
	taken     map[muster.InstanceID]bool // chosen to be replaced
}

func newMirror() *mirror {
	return &mirror{
		nodes: map[muster.NodeUID]muster.NodeStatus{}, instances: map[muster.InstanceID]muster.InstanceStatus{},
		taken: map[muster.InstanceID]bool{},
	}
}

// followNodes keeps the nodes current until ctx ends.
func (m *mirror) followNodes(ctx context.Context, api *client.Client, labels muster.Map) error {
	return ended(api.WatchNodes(ctx, &muster.NodeFilter{Labels: labels}, client.WatchOptions{StartOver: true}, func(e client.Event) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		switch {
		case e.Type == client.EventRestart:
			clear(m.nodes)
		case e.Node != nil && e.Left:
			delete(m.nodes, e.Node.UID)
		case e.Node != nil:
			m.nodes[e.Node.UID] = e.Node.Status
		}
		return nil
	}))
}

// followInstances keeps the instances current until ctx ends, and calls started
// with each change that tells of one that has begun to run.
func (m *mirror) followInstances(ctx context.Context, api *client.Client, labels muster.Map, started func(client.Event)) error {
	return ended(api.WatchInstances(ctx, &muster.InstanceFilter{Labels: labels}, client.WatchOptions{StartOver: true}, func(e client.Event) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		switch {
		case e.Type == client.EventRestart:
			clear(m.instances)
		case e.Instance != nil && (e.Left || e.Instance.Status == muster.Terminated):
			delete(m.instances, e.Instance.ID)
			delete(m.taken, e.Instance.ID)
		case e.Instance != nil:
			m.instances[e.Instance.ID] = e.Instance.Status
			if e.Type == muster.EventChange && e.Instance.Status == muster.Running && e.PreviousStatus == string(muster.Provisioning) {
				started(e)
			}
		}
		return nil
	}))
}

// ended makes nothing of a watch that was ended.
func ended(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// counts returns how many nodes and instances are in each status.
func (m *mirror) counts() (nodes map[muster.NodeStatus]int, instances map[muster.InstanceStatus]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	nodes, instances = map[muster.NodeStatus]int{}, map[muster.InstanceStatus]int{}
	for status := range maps.Values(m.nodes) {
		nodes[status]++
	}
	for status := range maps.Values(m.instances) {
		instances[status]++
	}
	return nodes, instances
}

// take chooses an instance to be replaced, one that has ended before one that
// runs, and never the same twice; "" when there is none.
func (m *mirror) take() muster.InstanceID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var chosen muster.InstanceID
	for id, status := range m.instances { // in no order
		if m.taken[id] {
			continue
		}
		if status == muster.Failed || status == muster.Stopped || status == muster.Lost {
			chosen = id
			break
		}
		if status == muster.Running {
			chosen = id
		}
	}
	if chosen != "" {
		m.taken[chosen] = true
	}
	return chosen
}
