package registry

import "github.com/muster-cloud/muster"

// applyService puts or drops a service.
func (b *batch) applyService(actor muster.Actor, s step) {
	o := s.service
	before := b.view.Service(o.ID)
	c := b.change(actor, s, muster.KindService, string(o.ID))
	if before != nil {
		c.PreviousRevision, c.PreviousStatus = before.Revision, string(before.Status)
		c.Previous = &muster.Facets{Health: before.Health}
	}
	c.Service, c.Status = o, string(o.Status)
	if s.deleted {
		b.delete(tableService, o)
		b.services.drop(o.ID)
		return
	}
	o.Revision = c.Revision
	if i := b.view.Instance(o.InstanceID); s.desired && i != nil && i.NodeUID != "" {
		o.DesiredRevision = c.Revision
		b.nudges[i.NodeUID] = Nudge{Instance: i.ID, DesiredRevision: c.Revision}
		u := *b.view.use(i.NodeUID)
		u.desiredRevision = max(u.desiredRevision, c.Revision)
		b.insert(tableUse, &u)
	}
	b.sequence(muster.ServiceSequence, sequenceNumber(string(o.ID)))
	b.insert(tableService, o)
	b.services.put(o.ID, o)
}

// follow brings an instance's services along with what became of it.
func (b *batch) follow(actor muster.Actor, before, after *muster.Instance, gone bool) {
	if before == nil || !gone && before.Status == after.Status && before.NodeUID == after.NodeUID {
		return
	}
	for _, s := range b.view.servicesOf(after.ID) {
		if gone {
			b.applyService(actor, step{service: s, reason: "its instance was terminated a while ago", deleted: true})
			continue
		}
		next := s.Clone()
		reason := followed(next, after)
		begins := before.NodeUID == "" || after.Status == muster.Provisioning
		if next.Publish != nil && next.Publish.Port == 0 && begins && after.NodeUID != "" && !next.Gone() {
			b.publish(next, after.NodeUID)
			reason = "its instance was placed"
		}
		if reason == "" {
			continue
		}
		if next.Status == muster.ServiceRemoved {
			next.RemovedAt = new(b.meta.at)
		}
		// An instance that was placed, or starts, has its node look at it anyway.
		b.applyService(actor, step{service: next, reason: reason})
	}
}

// followed gives a service the status that its instance leaves it, and returns why; ""
// when that is the one that it has.
func followed(s *muster.Service, i *muster.Instance) string {
	before := s.Status
	running := s.Desired == muster.WantRunning
	switch {
	case s.Status == muster.ServiceRemoved:
	case i.Status == muster.Terminated:
		s.Status = muster.ServiceRemoved
	case s.Status == muster.ServiceRemoving:
	case i.Status == muster.Lost:
		s.Status = muster.ServiceLost
	case i.Status == muster.Running && running && (s.Status == muster.ServicePending || s.Status == muster.ServiceLost):
		s.Status = muster.ServiceDeploying
	case i.Status != muster.Running && running && i.Status != muster.Unknown:
		s.Status = muster.ServicePending
	case i.Status != muster.Running && !running:
		s.Status = muster.ServiceStopped
	}
	if s.Status == before {
		return ""
	}
	s.StatusReason = "its instance is " + string(i.Status)
	if s.Status == muster.ServiceDeploying {
		s.StatusReason = ""
	} else {
		s.PID, s.CheckResults = nil, []muster.CheckResult{}
	}
	s.Health, s.HealthReason = healthOf(s), s.StatusReason
	return "its instance is " + string(i.Status)
}

// healthOf is the health of a service by its own status.
func healthOf(s *muster.Service) muster.ServiceHealth {
	switch s.Status {
	case muster.ServiceFailed, muster.ServiceLost, muster.ServiceRestarting:
		return muster.HealthBad
	case muster.ServiceRunning:
		return s.Health
	case muster.ServicePending:
		if s.StartedAt != nil {
			return muster.HealthBad // it has run, and is meant to
		}
	case muster.ServiceStopped:
		if s.Desired == muster.WantRunning {
			return muster.HealthBad
		}
	}
	return muster.HealthUnknown
}

// publish gives a service a free port of its node; it keeps 0 when there is none.
func (b *batch) publish(s *muster.Service, node muster.NodeUID) {
	p := *s.Publish
	p.Port = b.view.freePort(node, p.Protocol, b.ports)
	s.Publish = &p
	if p.Port == 0 {
		s.Status, s.StatusReason = muster.ServiceFailed, noPort(b.ports)
		s.Health = muster.HealthBad
	}
}

// applyEntry puts or drops an entry of the discovery feed.
func (b *batch) applyEntry(actor muster.Actor, s step) {
	e := s.entry
	c := b.change(actor, s, muster.KindRegistration, e.ObjectID())
	if before := b.view.Entry(e.Key); before != nil {
		c.PreviousRevision, c.PreviousStatus = before.Revision, string(before.Status)
	}
	c.Entry, c.Status = e, string(e.Status)
	if s.deleted {
		b.delete(tableEntry, e)
		b.entries.drop(e.Key)
		return
	}
	e.Revision = c.Revision
	b.insert(tableEntry, e)
	b.entries.put(e.Key, e)
}
