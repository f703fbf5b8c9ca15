package simulation_test

import (
	"context"
	"slices"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
	"github.com/muster-cloud/muster/agent/proc"
	"github.com/muster-cloud/muster/registry"
)

// judgeServiceLocked judges that a service stays where it is and counts up, that it is at
// work only in an instance that runs, and that nobody else has its port.
func (b *book) judgeServiceLocked(row *muster.Change, was *muster.Service) {
	s := row.Service
	if was != nil && (was.InstanceID != s.InstanceID || was.Generation > s.Generation || was.DesiredRevision > s.DesiredRevision || was.Name != s.Name) {
		b.c.fault("revision %d: %s was %+v and is %+v", row.Revision, s.ID, was, s)
	}
	i := b.instances[s.InstanceID]
	if i == nil {
		b.c.fault("revision %d: %s is in %s, which there is not", row.Revision, s.ID, s.InstanceID)
		return
	}
	if works(s.Status) && i.Status != muster.Running {
		b.c.fault("revision %d: %s is %s in %s, which is %s", row.Revision, s.ID, s.Status, i.ID, i.Status)
	}
	if s.Gone() != (s.RemovedAt != nil) {
		b.c.fault("revision %d: %s is %s, removed at %v", row.Revision, s.ID, s.Status, s.RemovedAt)
	}
	for _, other := range b.services {
		if other.ID != s.ID && !s.Gone() && !other.Gone() && samePort(s.Publish, other.Publish) && i.NodeUID != "" && b.nodeOfLocked(other) == i.NodeUID {
			b.c.fault("revision %d: %s has the port %d of %s that %s has", row.Revision, s.ID, s.Publish.Port, i.NodeUID, other.ID)
		}
	}
}

// works reports whether a service in that status has something going on in its instance.
func works(s muster.ServiceStatus) bool {
	return slices.Contains([]muster.ServiceStatus{muster.ServiceDeploying, muster.ServiceRunning, muster.ServiceRestarting, muster.ServiceStopping}, s)
}

func samePort(a, b *muster.Published) bool {
	return a != nil && b != nil && a.Port != 0 && *a == *b
}

func (b *book) nodeOfLocked(s *muster.Service) muster.NodeUID {
	if i := b.instances[s.InstanceID]; i != nil {
		return i.NodeUID
	}
	return ""
}

// judgeEntryLocked judges that an entry is of services that are well at that revision.
func (b *book) judgeEntryLocked(row *muster.Change) {
	if len(row.Entry.Owners) == 0 {
		b.c.fault("revision %d: %s is nobody's", row.Revision, row.ObjectID)
	}
	for _, owner := range row.Entry.Owners {
		s := b.services[muster.ServiceID(owner)]
		if s == nil {
			b.c.fault("revision %d: %s is of %s, which there is not", row.Revision, row.ObjectID, owner)
			continue
		}
		n := b.nodes[b.nodeOfLocked(s)]
		silent := row.Entry.Status == muster.EntryStale || b.braking // others of its owners may be sure
		if !isWell(s) || b.instances[s.InstanceID].Status != muster.Running || n == nil || n.Status != muster.Healthy && !silent {
			b.c.fault("revision %d: %s is %s and of %+v on %+v", row.Revision, row.ObjectID, row.Entry.Status, s, n)
		}
	}
}

func isWell(s *muster.Service) bool {
	return s.Status == muster.ServiceRunning && s.Health == muster.HealthOK && s.Desired == muster.WantRunning && len(s.CheckResults) == len(s.Checks)
}

// nameService notes services that a node was told to remove.
func (b *book) nameService(n *node, id muster.ServiceID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.named[n.name+"/"+string(id)] = true
}

// removingService judges that what an agent removes was named.
func (b *book) removingService(n *node, id muster.ServiceID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.named[n.name+"/"+string(id)] {
		b.c.fault("%s removes %s, and nobody named it", n.name, id)
	}
}

// processes are those on the host, whoever asks.
func (n *node) processes() []driver.ProcessStatus {
	all, err := drivertest.NewFake(n.host).ListProcesses(context.Background())
	if err != nil {
		panic(err) // a fake's never fails
	}
	return all
}

// isPresent reports whether a machine is an instance's newest: what has ended in those before goes with them.
func isPresent(v registry.View, machine string) bool {
	for i := range v.Instances() {
		if i.Machine == machine {
			return true
		}
	}
	return false
}

// settledServices judges services and entries once everything has had its time.
func (c *cluster) settledServices(l *life, v registry.View) {
	running := map[muster.ServiceID]driver.ProcessStatus{}
	for _, n := range c.nodes {
		for _, p := range n.processes() {
			id := muster.ServiceID(p.Spec.Name)
			if p.State != driver.Exited {
				running[id] = p
			}
			s := v.Service(id)
			if gone := s == nil || s.Gone(); gone && (p.State != driver.Exited || isPresent(v, p.Spec.Machine)) {
				c.fault("%s still has %s, which was removed", n.name, p.Spec)
			} else if !gone && p.State != driver.Exited && s.Status != muster.ServiceRunning {
				c.fault("%s runs %s, which is %s: %s", n.name, p.Spec, s.Status, s.StatusReason)
			}
		}
	}
	owners := map[string]bool{}
	entries := 0
	for e := range v.Entries() {
		entries++
		for _, owner := range e.Owners {
			owners[owner] = true
		}
		if !l.shelf.keeps(e.Key) {
			c.fault("%s is registered, and the feed does not have it", e.Key)
		}
	}
	if n := l.shelf.count(); n != entries {
		c.fault("%d entries are registered, and the feed has %d", entries, n)
	}
	for s := range v.Services() {
		c.judgeService(v, s, running)
		i := v.Instance(s.InstanceID)
		if want := len(s.RegisterWhenStable) > 0 && isWell(s) && i != nil && i.Status == muster.Running; owners[string(s.ID)] != want {
			c.fault("that %s is registered is %t: %+v (%s)", s.ID, !want, s, l.NotRegistered(s))
		}
		delete(owners, string(s.ID))
	}
	for owner := range owners {
		c.fault("an entry is of %s, which there is not", owner)
	}
}

// judgeService judges that a service got where it was wanted, or ended.
func (c *cluster) judgeService(v registry.View, s *muster.Service, running map[muster.ServiceID]driver.ProcessStatus) {
	i := v.Instance(s.InstanceID)
	if i == nil {
		c.fault("%s is in %s, which there is not", s.ID, s.InstanceID)
		return
	}
	n := v.NodeByUID(i.NodeUID)
	away := i.Status == muster.Lost && n != nil && !n.Live() // a node that never learnt its uid comes back as another one
	ok := s.Gone()
	switch {
	case i.Status == muster.Terminated || ok:
	case s.Desired == muster.WantTerminated:
		ok = away && s.Status == muster.ServiceRemoving
	case away:
		ok = s.Status == muster.ServiceLost
	case s.Desired == muster.WantStopped:
		ok = s.Status == muster.ServiceStopped || s.Status == muster.ServiceFailed
	case i.Status != muster.Running:
		ok = s.Status == muster.ServicePending
	default:
		ok = s.Status == muster.ServiceRunning || s.Status == muster.ServiceStopped || s.Status == muster.ServiceFailed
	}
	if !ok {
		c.fault("%s is wanted %s in %s, which is %s, and stays %s: %s", s.ID, s.Desired, i.ID, i.Status, s.Status, s.StatusReason)
	}
	if s.RemovedAt != nil && c.now().Sub(*s.RemovedAt) > terminatedTTL+time.Minute {
		c.fault("%s was removed at %s and is still remembered", s.ID, s.RemovedAt)
	}
	if s.Status == muster.ServiceRunning {
		c.judgeProcess(i, s, running[s.ID])
	}
}

// judgeProcess judges that a service that runs is the process of it.
func (c *cluster) judgeProcess(i *muster.Instance, s *muster.Service, p driver.ProcessStatus) {
	if p.Spec.Machine != i.Machine || s.PID == nil || p.PID != *s.PID || proc.Generation(p) != s.Generation {
		c.fault("%s is RUNNING in %s, and its process is %+v: %+v", s.ID, i.Machine, p, s)
	}
	if s.Publish == nil {
		return
	}
	for _, n := range c.nodes {
		port, there := n.ports.of(s.ID)
		here := slices.ContainsFunc(n.list(), func(m driver.Status) bool { return m.Spec.Machine == i.Machine })
		if here && (!there || port.Published != *s.Publish || port.Addr != i.Addr) {
			c.fault("%s is published as %+v on %s, which leads %+v", s.ID, s.Publish, n.name, port)
		}
	}
}
