package registry

import (
	"iter"
	"slices"

	"github.com/muster-cloud/muster"
)

// Service returns the service, or nil when there is none.
func (s Seen) Service(id muster.ServiceID) *muster.Service { return s.view().Service(id) }

// Service returns the service, or nil when there is none.
func (r *Registry) Service(id muster.ServiceID) *muster.Service { return Seen{r: r}.Service(id) }

// Services returns a page of the services in order of their number.
func (s Seen) Services(f *muster.ServiceFilter, page muster.PageInput) (*muster.ServiceConnection, error) {
	limit, err := page.Limit()
	if err != nil {
		return nil, err
	}
	after, err := parseEdge(page.After)
	if err != nil {
		return nil, err
	}
	v := s.view()
	matches, err := v.serviceMatcher(f)
	if err != nil {
		return nil, err
	}
	all := v.Services()
	if f != nil && f.InstanceID != nil {
		all = where(slices.Values(v.servicesOf(*f.InstanceID)), v.seesService)
	}
	past := func(o *muster.Service) bool {
		return after == "" || sequenceNumber(string(o.ID)) > sequenceNumber(after)
	}
	services, info := take(where(all, func(o *muster.Service) bool { return past(o) && matches(o) }), limit, after,
		func(o *muster.Service) string { return string(o.ID) })
	c := &muster.ServiceConnection{Edges: make([]*muster.ServiceEdge, 0, len(services)), PageInfo: info, Count: func() int { return count(where(all, matches)) }}
	for _, o := range services {
		c.Edges = append(c.Edges, &muster.ServiceEdge{Cursor: edge(string(o.ID)), Node: o})
	}
	return c, nil
}

// serviceMatcher returns what a filter selects, node and health included. Removed
// services are selected when their status is asked for.
func (v View) serviceMatcher(f *muster.ServiceFilter) (func(*muster.Service) bool, error) {
	if f == nil {
		return func(o *muster.Service) bool { return !o.Gone() }, nil
	}
	uid, err := v.uidOf(f.NodeID)
	if err != nil {
		return nil, err
	}
	return func(o *muster.Service) bool {
		return f.Matches(o) && (!o.Gone() || len(f.Status) > 0) &&
			(uid == "" || nodeOfInstance(v.rawInstance(o.InstanceID)) == uid) &&
			(len(f.Health) == 0 || slices.Contains(f.Health, v.health(o).Health))
	}, nil
}

// Service returns the service, or nil.
func (v View) Service(id muster.ServiceID) *muster.Service {
	s, _ := v.one(tableService, byID, id).(*muster.Service)
	if s == nil || !v.seesService(s) {
		return nil
	}
	return s
}

// Services walks all services in order of their number.
func (v View) Services() iter.Seq[*muster.Service] {
	all := rows[*muster.Service](v, tableService, byID)
	if v.sight.all() {
		return all
	}
	return where(all, v.seesService)
}

func (v View) seesService(s *muster.Service) bool {
	return v.sight.all() || v.sight.instance(v, v.rawInstance(s.InstanceID))
}

// servicesOf returns an instance's services in order of their number.
func (v View) servicesOf(id muster.InstanceID) []*muster.Service {
	return slices.Collect(rows[*muster.Service](v, tableService, byInstance, id))
}

// ServicesOf returns the services of an instance that are not removed.
func (r *Registry) ServicesOf(i *muster.Instance) []*muster.Service {
	return slices.DeleteFunc(append([]*muster.Service{}, r.View().servicesOf(i.ID)...), (*muster.Service).Gone)
}

// wellness is the health of a service as it is seen from outside, and why.
type wellness struct {
	Health muster.ServiceHealth
	Reason string
}

// health judges a service by itself, its instance and its node.
func (v View) health(s *muster.Service) wellness {
	i := v.rawInstance(s.InstanceID)
	meant := s.Desired == muster.WantRunning && s.StartedAt != nil && !s.Gone()
	if i != nil && meant && i.Status != muster.Running {
		return wellness{muster.HealthBad, "its instance " + string(i.ID) + " is " + string(i.Status)}
	}
	if n := v.NodeByUID(nodeOfInstance(i)); n != nil && meant && n.Status != muster.Healthy {
		return wellness{muster.HealthBad, "its node " + string(n.ID) + " is " + string(n.Status) + ": " + n.StatusReason}
	}
	reason := s.HealthReason
	if s.Health != muster.HealthOK && reason == "" {
		reason = s.StatusReason
	}
	return wellness{s.Health, reason}
}

// ServiceHealth is whether a service does what it should, its instance and its node
// considered.
func (r *Registry) ServiceHealth(s *muster.Service) muster.ServiceHealth {
	return r.View().health(s).Health
}

// ServiceEvidence returns why a service is not healthy. Nil when it is.
func (r *Registry) ServiceEvidence(s *muster.Service) *muster.Evidence {
	v := r.View()
	w := v.health(s)
	if w.Health == muster.HealthOK {
		return nil
	}
	e := &muster.Evidence{Reason: w.Reason, ExitCode: s.ExitCode}
	if n := v.NodeByUID(nodeOfInstance(v.rawInstance(s.InstanceID))); n != nil && n.Status != muster.Healthy {
		if of := r.NodeEvidence(n); of != nil {
			e.LastBeat, e.Silence, e.MissedBeats, e.ClockSkew = of.LastBeat, of.Silence, of.MissedBeats, of.ClockSkew
		}
	}
	return e
}

// CheckResults are what a service's checks found, with what they said last where that
// is known.
func (r *Registry) CheckResults(s *muster.Service) []muster.CheckResult {
	return r.outputs.onto(s)
}
