package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
)

// serviceAssignments are what the registry wants of the services of an instance.
func serviceAssignments(services []*muster.Service, now time.Time) []*muster.ServiceAssignment {
	out := []*muster.ServiceAssignment{}
	for _, s := range services {
		if s.Gone() {
			continue
		}
		out = append(out, &muster.ServiceAssignment{
			ID: s.ID, Generation: s.Generation, Name: s.Name, Desired: s.Desired, Announced: s.Announced,
			Drain:     left(s.DrainUntil, s.DrainFor, now),
			Ended:     s.Desired == muster.WantRunning && (s.Status == muster.ServiceStopped || s.Status == muster.ServiceFailed),
			DeployURL: s.DeployURL, SHA256: s.SHA256, Command: s.Command, Env: s.Env, User: s.User, Dir: s.Dir,
			Port: s.Port, Publish: s.Publish, Checks: s.Checks, Restart: s.Restart,
		})
	}
	return out
}

// observeServices brings an instance's services up to what its agent reports of them. What
// becomes of them when it does not run, or is not to, follows from that: see follow. An
// instance that is started anew may have two machines: the former one while it is drained.
func (r *Registry) observeServices(v View, w *Writes, i *muster.Instance, m *muster.InstanceReportInput) {
	if m.Status != muster.Running || said(i, m) != muster.Running || i.Desired != muster.WantRunning {
		return
	}
	for k := range m.Services {
		s := v.Service(m.Services[k].ID)
		if s != nil && s.InstanceID == i.ID && s.Status != muster.ServiceRemoving && !s.Gone() {
			r.observeService(w, s, &m.Services[k])
		}
	}
}

// servicesIn are the services that a report speaks of, whatever machine they are in.
func servicesIn(in *muster.ReportInstancesInput) map[muster.ServiceID]bool {
	there := map[muster.ServiceID]bool{}
	for _, m := range in.Instances {
		for _, s := range m.Services {
			there[s.ID] = true
		}
	}
	return there
}

// endServices ends the services of an instance that are being removed and are gone, and
// reports whether the instance is to go with one of them from now on.
func (r *Registry) endServices(v View, w *Writes, i *muster.Instance, gone func(*muster.Service) bool) (ends bool) {
	for _, s := range v.servicesOf(i.ID) {
		if s.Status != muster.ServiceRemoving || !gone(s) {
			continue
		}
		next := s.Clone()
		r.removed(next, "its node confirmed that it is gone")
		r.outputs.forget(s.ID)
		w.Service(next, next.StatusReason)
		if s.OwnsInstance && i.Status != muster.Terminating {
			r.terminate(v, w, i, "its service "+string(s.ID)+" was removed")
			ends = true
		}
	}
	return ends
}

// observeService brings one service up to what was reported of its present generation.
func (r *Registry) observeService(w *Writes, s *muster.Service, m *muster.ServiceReportInput) {
	if m.Generation != s.Generation || !observable(m.Status) {
		return // its agent has not come to what is desired, or has not noticed that its instance runs
	}
	r.outputs.keep(s.ID, m.Checks)
	next := s.Clone()
	now := stamp(r.opts.Now())
	next.Status, next.StatusReason = m.Status, m.Reason
	if s.Desired == muster.WantStopped && m.Status != muster.ServiceStopped && m.Status != muster.ServiceFailed {
		next.Status = muster.ServiceStopping
	} else if s.Desired == muster.WantStopped {
		next.Status = muster.ServiceStopped
	}
	next.Restarts, next.PID, next.ExitCode = m.Restarts, m.PID, m.ExitCode
	if next.SHA256 == "" { // from now on it is made of this
		next.SHA256 = m.SHA256
	}
	next.CheckResults = turned(s.CheckResults, m.Checks, now)
	next.Health, next.HealthReason = m.Health, m.HealthReason
	next.Health = healthOf(next)
	if next.Status == muster.ServiceRunning || next.Status == muster.ServiceStopped || next.Status == muster.ServiceFailed {
		next.DrainUntil = nil
	}
	switch {
	case next.Status == muster.ServiceRunning && (s.Status != muster.ServiceRunning || !equalPointees(s.PID, m.PID)):
		next.StartedAt, next.EndedAt = &now, nil
	case (next.Status == muster.ServiceStopped || next.Status == muster.ServiceFailed) && s.Status != next.Status:
		next.EndedAt = &now
	}
	if sameService(s, next) {
		return
	}
	w.Service(next, observed(s, next))
}

// observed says in a few words what a report changed of a service.
func observed(s, next *muster.Service) string {
	switch {
	case next.StatusReason != "":
		return next.StatusReason
	case next.Health != s.Health && next.HealthReason != "":
		return next.HealthReason
	case next.Status != s.Status && next.Status == muster.ServiceRunning:
		return "its process runs"
	case next.Status != s.Status && next.Status == muster.ServiceStopped:
		return "it has ended"
	case next.Status != s.Status:
		return "reported by its node"
	case next.Health != s.Health && next.Health == muster.HealthOK && len(next.CheckResults) > 0:
		return "all of its checks are OK"
	}
	for _, c := range next.CheckResults {
		turned := func(before muster.CheckResult) bool { return before.Name == c.Name && before.Status == c.Status }
		if !slices.ContainsFunc(s.CheckResults, turned) {
			return fmt.Sprintf("its check %s is %s", c.Name, c.Status)
		}
	}
	switch {
	case next.Restarts > s.Restarts:
		return "it was started again"
	case !equalPointees(s.PID, next.PID):
		return "its process is another one"
	}
	return "reported by its node"
}

// observable reports whether an agent can see a service in that status while its instance
// runs; the others are for the registry to say.
func observable(s muster.ServiceStatus) bool {
	switch s {
	case muster.ServiceDeploying, muster.ServiceRunning, muster.ServiceRestarting, muster.ServiceStopping, muster.ServiceStopped, muster.ServiceFailed:
		return true
	}
	return false
}

// turned are the results of checks without what is volatile, with since when each has
// its status.
func turned(before, reported []muster.CheckResult, now time.Time) []muster.CheckResult {
	out := make([]muster.CheckResult, 0, len(reported))
	for _, c := range reported {
		since := &now
		for _, old := range before {
			if old.Name == c.Name && old.Status == c.Status {
				since = old.Since
			}
		}
		out = append(out, muster.CheckResult{Name: c.Name, Status: c.Status, Since: since})
	}
	return out
}

func sameService(a, b *muster.Service) bool {
	same := func(x, y muster.CheckResult) bool { return x.Name == y.Name && x.Status == y.Status }
	return a.SHA256 == b.SHA256 && a.Status == b.Status && a.StatusReason == b.StatusReason && a.Health == b.Health && a.HealthReason == b.HealthReason &&
		a.Restarts == b.Restarts && equalPointees(a.PID, b.PID) && equalPointees(a.ExitCode, b.ExitCode) &&
		slices.EqualFunc(a.CheckResults, b.CheckResults, same)
}

// outputs are what checks said last. They are not part of the state, and no change.
type outputs struct {
	mu sync.RWMutex
	of map[muster.ServiceID][]muster.CheckResult
}

func (o *outputs) keep(id muster.ServiceID, results []muster.CheckResult) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = map[muster.ServiceID][]muster.CheckResult{}
	}
	o.of[id] = results
}

func (o *outputs) forget(id muster.ServiceID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.of, id)
}

// onto returns the service's results with what is known of their last run.
func (o *outputs) onto(s *muster.Service) []muster.CheckResult {
	o.mu.RLock()
	defer o.mu.RUnlock()
	out := slices.Clone(s.CheckResults)
	for i := range out {
		for _, c := range o.of[s.ID] {
			if c.Name == out[i].Name {
				out[i].Output, out[i].At = c.Output, c.At
			}
		}
	}
	return out
}

// reportable returns the service if the caller may say how it is: one that they see, or of
// a REGISTRAR one that its key is for.
func (v View) reportable(ctx context.Context, id muster.ServiceID) *muster.Service {
	p := muster.PrincipalOf(ctx)
	if p.Role != muster.Registrar {
		v.sight = sightOf(ctx)
		return v.Service(id)
	}
	if s := v.Service(id); s != nil && p.Scope.HasService(s.Name) {
		return s
	}
	return nil
}

// ReportCheck takes to a service's agent what the service says of its own TTL check.
// UNAVAILABLE: the agent is not connected; say it again.
func (r *Registry) ReportCheck(ctx context.Context, in muster.ReportCheckInput) (*muster.Service, error) {
	if err := in.Validate(); err != nil {
		return nil, err
	}
	v := r.View()
	s := v.reportable(ctx, in.ServiceID)
	if s == nil || s.Gone() {
		return nil, noService(in.ServiceID)
	}
	if !slices.ContainsFunc(s.Checks, func(c muster.Check) bool { return c.Name == in.Check && c.Kind == muster.TTLCheck }) {
		return nil, muster.InvalidField("check", "service %s has no check %q of the kind TTL", s.ID, in.Check)
	}
	timed, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	request := muster.AgentRequest{Check: &muster.CheckRequest{Service: s.ID, Check: in.Check, Status: in.Status, Output: in.Output}}
	answer, err := r.desk.ask(timed, nodeOfInstance(v.rawInstance(s.InstanceID)), request)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded), err == nil && answer == nil:
		return nil, muster.Errorf(muster.Unavailable, "the agent of service %s is not connected: say it again in a moment", s.ID)
	case err != nil:
		return nil, err
	case answer.Code != nil:
		return nil, muster.Errorf(*answer.Code, "the agent of service %s did not take it: %s", s.ID, answer.Message)
	}
	return s, nil
}
