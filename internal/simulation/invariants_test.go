package simulation_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/scheduler"
)

// look judges what holds at every moment.
func (c *cluster) look() {
	l := c.life.Load()
	if l == nil {
		return
	}
	v := l.View() // before the log: that may go on meanwhile
	c.book.read(l)
	if head := v.Head().Revision; head <= c.book.head() {
		// Memory may be behind a commit that has not been answered, never ahead.
		if diff := cmp.Diff(c.book.objects(head), present(v)); diff != "" {
			c.fault("memory at revision %d is not what the log says (-log +memory):\n%s", head, diff)
		}
	} else {
		c.fault("memory is at revision %d and the log at %d", head, c.book.head())
	}
	for n := range v.LiveNodes() {
		var held muster.Capacity
		for i := range v.InstancesOn(n.UID) {
			if i.Reserved {
				held.CPUPercent, held.MemoryMB, held.Instances = held.CPUPercent+i.CPULimit, held.MemoryMB+i.MemLimitMB, held.Instances+1
			}
		}
		got := *l.Allocated(n)
		if got != held && l.View().Head() == v.Head() {
			c.fault("%s: allocated is %+v, and its instances hold %+v", n.ID, got, held)
		}
	}
}

// present is the JSON of every object of a view.
func present(v registry.View) map[string]string {
	out := map[string]string{}
	for n := range v.Nodes() {
		out[string(n.UID)] = encoded(n)
	}
	for i := range v.Instances() {
		out[string(i.ID)] = encoded(i)
	}
	for o := range v.Conditions() {
		out[string(o.Name)] = encoded(o)
	}
	for s := range v.Services() {
		out[string(s.ID)] = encoded(s)
	}
	for e := range v.Entries() {
		out[e.ObjectID()] = encoded(e)
	}
	return out
}

// settled judges what is there once everything has had its time.
func (c *cluster) settled() {
	l := c.life.Load()
	v := l.View()
	byName := map[string]*muster.Node{}
	for n := range v.LiveNodes() {
		byName[string(n.ID)] = n
		if n.Status != muster.Healthy {
			c.fault("%s beats and is %s: %s", n.ID, n.Status, n.StatusReason)
		}
	}
	for _, n := range c.nodes {
		if byName[n.name] == nil {
			c.fault("%s is not registered", n.name)
		} else {
			c.judgeHost(v, n, byName[n.name])
		}
	}
	for i := range v.Instances() {
		c.judgeInstance(v, i)
	}
	c.settledServices(l, v)
	for _, name := range []muster.ConditionName{muster.Brake, muster.ExpiryPostponed} {
		if v.Holds(name) {
			c.fault("%s still holds: %s", name, v.Condition(name).Reason)
		}
	}
}

// judgeHost judges that the registry knows a host as it is, and that it runs
// what is desired of it, and nothing else.
func (c *cluster) judgeHost(v registry.View, n *node, is *muster.Node) {
	images, _ := drivertest.NewFake(n.host).Images(context.Background()) // a fake's never fail
	if is.Addr != n.at() || is.BootID != n.bootID() || !slices.Equal(is.Images, images) {
		c.fault("%s is at %s, booted as %s, with the images %v; the registry has %+v", n.name, n.at(), n.bootID(), images, is)
	}
	there := map[string]driver.Status{}
	for _, m := range n.list() {
		there[m.Spec.Machine] = m
		i := v.Instance(muster.InstanceID(m.Spec.Instance))
		switch {
		case i == nil || i.Status == muster.Terminated:
			c.fault("%s still has %s, which was terminated", n.name, m.Spec.Machine)
		case m.State != driver.Exited && (i.Machine != m.Spec.Machine || i.Status != muster.Running || i.NodeUID != is.UID):
			c.fault("%s has %s, which is %s, while %s is %s as %s", n.name, m.Spec.Machine, m.State, i.ID, i.Status, i.Machine)
		}
	}
	for i := range v.InstancesOn(is.UID) {
		m, ok := there[i.Machine]
		if i.Status == muster.Running && (!ok || m.State != driver.Running || i.PID == nil || *i.PID != m.PID) {
			c.fault("%s is RUNNING and %s has %+v of it", i.ID, n.name, m)
		}
	}
}

// judgeInstance judges that an instance got where it was wanted, or ended.
func (c *cluster) judgeInstance(v registry.View, i *muster.Instance) {
	ended := i.Status == muster.Stopped || i.Status == muster.Failed
	if n := v.NodeByUID(i.NodeUID); i.Status == muster.Lost && n != nil && !n.Live() {
		ended = true // a node that never learnt its uid comes back as another one
	}
	ok := false
	switch i.Desired {
	case muster.WantRunning:
		ok = i.Status == muster.Running || ended
		if i.Status == muster.Pending {
			ok = c.fitsNowhere(v, i)
		}
	case muster.WantStopped:
		ok = ended
	case muster.WantTerminated:
		ok = i.Status == muster.Terminated
	}
	if !ok {
		c.fault("%s is wanted %s and stays %s: %s", i.ID, i.Desired, i.Status, i.StatusReason)
	}
	if i.TerminatedAt != nil && c.now().Sub(*i.TerminatedAt) > terminatedTTL+time.Minute {
		c.fault("%s was terminated at %s and is still remembered", i.ID, i.TerminatedAt)
	}
	if i.Reserved != (i.Status == muster.Running) {
		c.fault("%s is %s, and that it is reserved is %t", i.ID, i.Status, i.Reserved)
	}
}

func (c *cluster) fitsNowhere(v registry.View, i *muster.Instance) bool {
	l := c.life.Load()
	candidates := func(yield func(scheduler.Candidate) bool) {
		for n := range v.LiveNodes() {
			if !yield(scheduler.Candidate{Node: n, Used: *l.Allocated(n), FreeAddresses: l.Free(n).Instances}) {
				return
			}
		}
	}
	ask := scheduler.Ask{CPUPercent: i.CPULimit, MemoryMB: i.MemLimitMB, Image: i.BaseImage, Selector: i.NodeSelector, Pinned: i.PinnedNode}
	return scheduler.Place(ask, candidates, scheduler.Options{}).Node == nil
}

// judgeRequests judges that each requestId made one instance, or one service.
func (c *cluster) judgeRequests() {
	made := map[string]map[string]bool{}
	for _, row := range c.book.since(0) {
		if row.Instance == nil {
			continue
		}
		request := row.Instance.Labels["request"]
		if request == "" {
			continue // it was launched for a service
		}
		if made[request] == nil {
			made[request] = map[string]bool{}
		}
		made[request][row.ObjectID] = true
	}
	for request, ids := range made {
		if len(ids) != 1 {
			c.fault("the requestId %s made %v", request, slices.Sorted(maps.Keys(ids)))
		}
	}
	named := map[string]string{}
	for _, row := range c.book.since(0) {
		if s := row.Service; s != nil && named[s.Name] != "" && named[s.Name] != row.ObjectID {
			c.fault("the request of %s made %s and %s", s.Name, named[s.Name], row.ObjectID)
		} else if s != nil {
			named[s.Name] = row.ObjectID
		}
	}
	for _, o := range c.operators {
		for request, id := range o.made {
			if !made[request][string(id)] {
				c.fault("%s was told that %s made %s, and it made %v", o.name, request, id, made[request])
			}
		}
	}
}

// judgeIdle judges that a cluster that has settled does nothing: no change but
// that something has had its time.
func (c *cluster) judgeIdle(since int64) {
	for _, row := range c.book.since(since) {
		if !row.Deleted && row.PreviousStatus != string(muster.Pending) {
			c.fault("an idle cluster makes change %d: %s is %s: %s", row.Revision, row.ObjectID, row.Status, row.Reason)
		}
	}
}

// judgeDisk judges that the disk has what memory has, by reading it back and by
// replaying its log from nothing.
func (c *cluster) judgeDisk(l *life) {
	before, v := present(l.View()), l.View()
	state, err := l.store.Load(context.Background())
	if err != nil {
		c.fault("load: %v", err)
		return
	}
	if state.Head != v.Head() {
		c.fault("the disk is at %+v and memory at %+v", state.Head, v.Head())
	}
	replayed := map[string]string{}
	for after := int64(0); ; {
		page, err := l.store.ChangesAfter(context.Background(), after, 500)
		if err != nil {
			c.fault("replay: %v", err)
			return
		}
		for _, row := range page {
			if replayed[row.ObjectID] = row.Object; row.Deleted {
				delete(replayed, row.ObjectID)
			}
			after = row.Revision
		}
		if len(page) < 500 {
			break
		}
	}
	if diff := cmp.Diff(before, replayed); diff != "" {
		c.fault("the log replayed is not the present (-present +replayed):\n%s", diff)
	}
	if diff := cmp.Diff(before, stored(state)); diff != "" {
		c.fault("the tables are not the present (-present +tables):\n%s", diff)
	}
}

// stored is the JSON of every object of the tables.
func stored(s *muster.State) map[string]string {
	out := map[string]string{}
	for _, n := range s.Nodes {
		out[string(n.UID)] = encoded(n)
	}
	for _, i := range s.Instances {
		out[string(i.ID)] = encoded(i)
	}
	for _, o := range s.Conditions {
		out[string(o.Name)] = encoded(o)
	}
	for _, o := range s.Services {
		out[string(o.ID)] = encoded(o)
	}
	for _, e := range s.Entries {
		out[e.ObjectID()] = encoded(e)
	}
	return out
}

// tally is the run in a line.
func (c *cluster) tally() string {
	var w strings.Builder
	seen := map[string]int{}
	for _, row := range c.book.since(0) {
		seen[fmt.Sprint(row.Kind, " ", row.Status)]++
	}
	for _, o := range c.watchers {
		fmt.Fprintf(&w, " %d/%d/%d/%d", o.events, o.listed, o.resumed, o.compacted)
	}
	return fmt.Sprintf("%d nodes, %s of weather, %d servers, %d changes, %d launches; watchers (events/listed/resumed/compacted):%s; %v",
		len(c.nodes), c.plan.chaos.Round(time.Second), c.lives, c.book.head(), len(c.book.launches), w.String(), seen)
}
