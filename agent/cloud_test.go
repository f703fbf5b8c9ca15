package agent_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// cloud is a registry of one node in memory, which also judges what the agent
// tells it.
type cloud struct {
	mu         sync.Mutex
	epoch      string
	revision   int64
	last       int64 // instance number
	node       client.Node
	birth      string // the token that it registers with
	known      bool
	sequence   int64
	instances  map[muster.InstanceID]*wish
	interval   time.Duration
	fail       func(call string) error // nil, or what a call fails with
	calls      map[string][]time.Time
	registered []muster.RegisterNodeInput
	reports    []muster.ReportInstancesInput // those that were taken
	named      map[string]bool               // machines that were named as terminated
	lost       bool                          // reports are taken and the answers get lost
	hidden     bool                          // it neither wants nor names anything
	hid        int64                         // the revision at which that last changed
	doomed     []string                      // volumes that are to be removed
	faults     []string
	confirming func(muster.ReportInstancesInput) // judges each report; nil: nobody does

	peers   muster.Peers
	beat    muster.HeartbeatInput // the last one
	asks    chan muster.AgentRequest
	answers chan muster.AgentAnswerInput
}

// wish is an instance as the registry has it.
type wish struct {
	muster.Assignment
	since  int64 // the revision that last changed what is desired
	status muster.InstanceStatus
	seen   muster.InstanceReportInput
	drains time.Time // until when
}

func newCloud() *cloud {
	return &cloud{
		epoch: "e1", revision: 1, interval: 10 * time.Second,
		instances: map[muster.InstanceID]*wish{}, calls: map[string][]time.Time{}, named: map[string]bool{},
		asks: make(chan muster.AgentRequest), answers: make(chan muster.AgentAnswerInput, 10),
	}
}

func (c *cloud) called(name string) error {
	c.calls[name] = append(c.calls[name], time.Now())
	if c.fail != nil {
		return c.fail(name)
	}
	return nil
}

func (c *cloud) knows(uid muster.NodeUID, incarnation int64) error {
	switch {
	case !c.known || uid != c.node.UID || incarnation > c.node.Incarnation:
		return muster.Errorf(muster.UnknownNode, "register again")
	case incarnation < c.node.Incarnation:
		return muster.Errorf(muster.Superseded, "stop")
	}
	return nil
}

func (c *cloud) RegisterNode(_ context.Context, in muster.RegisterNodeInput) (*client.Registration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.called("RegisterNode"); err != nil {
		return nil, err
	}
	if c.node.UID == "" {
		c.node.UID = "n-1"
	} else if in.UID == nil || *in.UID != c.node.UID {
		c.fault("it registered with the uid %v", in.UID)
	}
	if in.BirthToken == "" || c.birth != "" && in.BirthToken != c.birth {
		c.fault("its birth token is %q, and was %q", in.BirthToken, c.birth)
	}
	c.birth = in.BirthToken
	if in.Incarnation < c.node.Incarnation {
		return nil, muster.Errorf(muster.Superseded, "stop")
	}
	c.node.ID, c.node.Incarnation, c.known, c.sequence = in.ID, in.Incarnation, true, 0
	c.registered = append(c.registered, in)
	node := c.node
	return &client.Registration{
		Node:   &node,
		Server: &client.ServerInfo{ClusterUID: "cluster", Epoch: c.epoch, HeartbeatInterval: c.interval},
		Remove: c.take(in.Instances, in.Epoch, in.AppliedRevision),
	}, nil
}

func (c *cloud) Heartbeat(_ context.Context, in muster.HeartbeatInput) (*muster.Beat, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.called("Heartbeat"); err != nil {
		return nil, err
	}
	if err := c.knows(in.UID, in.Incarnation); err != nil {
		return nil, err
	}
	c.beat = in
	return &muster.Beat{NextBeatIn: c.interval, Epoch: c.epoch, DesiredRevision: c.desired(), ReportSequence: c.sequence, Peers: c.peers.Tag}, nil
}

func (c *cloud) Assignments(_ context.Context, uid muster.NodeUID, incarnation int64) (*muster.Assignments, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.called("Assignments"); err != nil {
		return nil, err
	}
	if err := c.knows(uid, incarnation); err != nil {
		return nil, err
	}
	a := &muster.Assignments{Epoch: c.epoch, DesiredRevision: c.desired(), Subnet: "10.213.7.0/24", RemoveVolumes: c.doomed}
	for _, id := range slices.Sorted(maps.Keys(c.instances)) {
		w := c.instances[id]
		if w.status == muster.Terminated || c.hidden {
			continue
		}
		one := w.Assignment
		one.Drain = max(time.Until(w.drains), 0)
		one.Ended = w.Desired == muster.WantRunning && (w.status == muster.Stopped || w.status == muster.Failed)
		a.Instances = append(a.Instances, &one)
	}
	return a, nil
}

func (c *cloud) Peers(_ context.Context, uid muster.NodeUID, incarnation int64) (*muster.Peers, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.called("Peers"); err != nil {
		return nil, err
	}
	if err := c.knows(uid, incarnation); err != nil {
		return nil, err
	}
	peers := c.peers
	return &peers, nil
}

func (c *cloud) ReportInstances(_ context.Context, in muster.ReportInstancesInput) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.called("ReportInstances"); err != nil {
		return nil, err
	}
	if err := c.knows(in.UID, in.Incarnation); err != nil {
		return nil, err
	}
	if in.Sequence <= c.sequence {
		c.fault("the sequence went from %d to %d", c.sequence, in.Sequence)
	}
	c.sequence = in.Sequence
	c.reports = append(c.reports, in)
	if c.confirming != nil {
		c.confirming(in)
	}
	remove := c.take(in.Instances, in.Epoch, in.AppliedRevision)
	if c.lost {
		return nil, muster.Errorf(muster.Unavailable, "the answer got lost")
	}
	return remove, nil
}

// take applies an inventory as the registry does.
func (c *cloud) take(reports []muster.InstanceReportInput, epoch string, applied int64) (remove []string) {
	there := map[muster.InstanceID]bool{}
	machines := map[string]bool{}
	for _, r := range reports {
		if machines[r.Machine] {
			c.fault("%s is in one report twice", r.Machine)
		}
		machines[r.Machine] = true
		w := c.instances[r.ID]
		switch {
		case r.Epoch != c.epoch || c.hidden:
			continue
		case w == nil || w.status == muster.Terminated:
			remove = append(remove, r.Machine)
			c.named[r.Machine] = true
			continue
		}
		there[r.ID] = true
		if ended(r) && slices.ContainsFunc(reports, func(o muster.InstanceReportInput) bool { return o.ID == r.ID && !ended(o) }) {
			c.fault("%s is reported %s while another generation lives", r.Machine, r.Status)
		}
		if r.Generation == w.Generation && w.status != muster.Terminating {
			c.observe(w, r)
		}
	}
	for id, w := range c.instances {
		if c.hidden || there[id] || epoch != c.epoch || applied < w.since {
			continue
		}
		switch w.status {
		case muster.Terminating:
			w.status = muster.Terminated
		case muster.Provisioning, muster.Running, muster.Stopping:
			c.fault("%s is %s and a report that has applied it leaves it out", id, w.status)
		}
	}
	return remove
}

func (c *cloud) observe(w *wish, r muster.InstanceReportInput) {
	w.seen = r
	switch {
	case w.status == muster.Stopping && ended(r), w.status == muster.Stopped && ended(r):
		w.status = muster.Stopped
	case w.status == muster.Stopping:
	case w.status == muster.Running && r.Status == muster.Provisioning:
	default:
		if !w.status.MayBecome(r.Status) {
			c.fault("%s is reported %s while it is %s", r.Machine, r.Status, w.status)
			return
		}
		w.status = r.Status
	}
}

func ended(r muster.InstanceReportInput) bool {
	return r.Status == muster.Stopped || r.Status == muster.Failed
}

func (c *cloud) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

func (c *cloud) desired() int64 {
	newest := c.hid
	for _, w := range c.instances {
		newest = max(newest, w.since)
	}
	return newest
}

// hide makes the registry neither want nor name anything, or takes that back.
func (c *cloud) hide(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision++
	c.hidden, c.hid = on, c.revision
	for _, w := range c.instances {
		w.since = c.revision // what was not told before is told as of now
	}
}

// What people ask for. Each returns whether it could be.

func (c *cloud) launch(command ...string) muster.InstanceID {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	id := muster.InstanceIDOf(c.last)
	w := &wish{status: muster.Provisioning, Assignment: muster.Assignment{
		ID: id, Name: "name-" + string(id), BaseImage: "minimal", Command: command, Env: muster.Map{"PASSWORD": secret},
		CPULimit: 25, MemLimitMB: 128, Addr: fmt.Sprintf("10.213.7.%d", c.last%250+2),
	}}
	c.instances[id] = w
	c.want(w, muster.WantRunning, true)
	return id
}

func (c *cloud) want(w *wish, desired muster.DesiredStatus, raise bool) {
	c.revision++
	w.Desired, w.since = desired, c.revision
	if raise {
		w.Generation++
		w.Machine = fmt.Sprintf("k3f9-%s-%d", w.ID, w.Generation)
	}
}

func (c *cloud) change(id muster.InstanceID, desired muster.DesiredStatus, to muster.InstanceStatus, from ...muster.InstanceStatus) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.instances[id]
	if w == nil || !slices.Contains(from, w.status) {
		return false
	}
	w.status = to
	c.want(w, desired, to == muster.Provisioning)
	return true
}

// drain has what runs of an instance go on for a while from now on, whatever ends it.
func (c *cloud) drain(id muster.InstanceID, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.instances[id]; w != nil && w.status == muster.Running {
		w.drains = time.Now().Add(d)
	}
}

func (c *cloud) stop(id muster.InstanceID) bool {
	return c.change(id, muster.WantStopped, muster.Stopping, muster.Provisioning, muster.Running)
}

func (c *cloud) start(id muster.InstanceID) bool {
	return c.change(id, muster.WantRunning, muster.Provisioning, muster.Stopped, muster.Failed)
}

func (c *cloud) restart(id muster.InstanceID) bool {
	return c.change(id, muster.WantRunning, muster.Provisioning, muster.Running)
}

func (c *cloud) terminate(id muster.InstanceID) bool {
	return c.change(id, muster.WantTerminated, muster.Terminating,
		muster.Provisioning, muster.Running, muster.Stopping, muster.Stopped, muster.Failed)
}

// What tests ask.

func (c *cloud) status(id muster.InstanceID) muster.InstanceStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instances[id].status
}

func (c *cloud) seen(id muster.InstanceID) muster.InstanceReportInput {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instances[id].seen
}

func (c *cloud) times(call string) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls[call])
}

func (c *cloud) with(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// report returns the newest report that was taken, and how many were.
func (c *cloud) report() (newest muster.ReportInstancesInput, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n = len(c.reports); n > 0 {
		newest = c.reports[n-1]
	}
	return newest, n
}

func (c *cloud) registrations() []muster.RegisterNodeInput {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.registered)
}

func (c *cloud) now() (revision, incarnation int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revision, c.node.Incarnation
}
