package registry

import (
	"context"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
)

// DeployService makes a service, in an instance that there is or in one that is launched
// for it, and answers once that is durable; its node deploys it afterwards. The same
// requestId gives the same service, as it is now.
func (r *Registry) DeployService(ctx context.Context, in muster.DeployServiceInput) (*muster.Service, int64, error) {
	if err := in.Validate(); err != nil {
		return nil, 0, err
	}
	if err := r.checkTTLs(in.RegisterWhenStable); err != nil {
		return nil, 0, err
	}
	if in.Queue && in.NodeID == nil && !sightOf(ctx).all() {
		return nil, 0, muster.InvalidField("nodeId", "a key for a part of the nodes cannot let an instance wait for any node; name one, or leave queue out")
	}
	return r.createService(ctx, in.RequestID, in, func(v View, w *Writes) (*muster.Service, error) {
		s := r.deployed(v, &in)
		if in.InstanceID != nil {
			i, err := v.hosting(*in.InstanceID, s)
			if err != nil {
				return nil, err
			}
			return s, r.put(v, w, s, i)
		}
		launch := in.Launch()
		if err := launch.Validate(); err != nil {
			return nil, err
		}
		i, err := r.launch(v, &launch, s)
		if err != nil {
			return nil, err
		}
		s.OwnsInstance = true
		if i.Status == muster.Pending {
			w.Instance(i, i.StatusReason)
		} else {
			w.Assign(i, "launched for the service "+s.Name)
		}
		return s, r.put(v, w, s, i)
	})
}

// RegisterService announces a process that runs already in an instance: it is checked,
// published and registered as one that was deployed, and never started or stopped.
func (r *Registry) RegisterService(ctx context.Context, in muster.RegisterServiceInput) (*muster.Service, int64, error) {
	if err := in.Validate(); err != nil {
		return nil, 0, err
	}
	if err := r.checkTTLs(in.RegisterWhenStable); err != nil {
		return nil, 0, err
	}
	return r.createService(ctx, in.RequestID, in, func(v View, w *Writes) (*muster.Service, error) {
		s := r.deployed(v, &muster.DeployServiceInput{
			Name: in.Name, Port: in.Port, Publish: in.Publish, Checks: in.Checks,
			RegisterWhenStable: completed(in.RegisterWhenStable), StableFor: in.StableFor,
		})
		s.Announced = true
		i, err := v.hosting(in.InstanceID, s)
		if err != nil {
			return nil, err
		}
		return s, r.put(v, w, s, i)
	})
}

// createService makes a service once for a requestId.
func (r *Registry) createService(ctx context.Context, requestID string, input any, create func(View, *Writes) (*muster.Service, error)) (*muster.Service, int64, error) {
	request := r.newOnce(muster.PrincipalOf(ctx), requestID, input)
	var out *muster.Service
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		v.sight = sightOf(ctx)
		earlier, err := request.earlier(v)
		if err != nil {
			return err
		}
		if earlier != "" {
			if out = v.Service(muster.ServiceID(earlier)); out == nil {
				return muster.Errorf(muster.NotFound, "the service %s that this requestId made was removed a while ago: use a new requestId", earlier)
			}
			return nil
		}
		if out, err = create(v, w); err != nil {
			return err
		}
		request.record(w, string(out.ID))
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

func (r *Registry) deployed(v View, in *muster.DeployServiceInput) *muster.Service {
	s := &muster.Service{
		ID: muster.ServiceIDOf(v.meta().sequences[muster.ServiceSequence] + 1), Name: in.Name,
		DeployURL: in.DeployURL, SHA256: strings.ToLower(in.SHA256), Command: slices.Clone(in.Command),
		EnvNames: muster.EnvNamesOf(in.Env), Env: orEmpty(in.Env), User: in.User, Dir: in.Dir, Port: in.Port, Publish: in.Publish,
		RegisterWhenStable: completed(in.RegisterWhenStable), StableFor: in.StableFor,
		Restart: muster.RestartPolicy{}.WithDefaults(), Status: muster.ServicePending, Health: muster.HealthUnknown,
		Desired: muster.WantRunning, Generation: 1, CreatedAt: stamp(r.opts.Now()),
		Checks: []muster.Check{}, CheckResults: []muster.CheckResult{},
	}
	if in.Restart != nil {
		s.Restart = in.Restart.WithDefaults()
	}
	s.DrainFor = muster.DefaultDrainFor
	if in.DrainFor != nil {
		s.DrainFor = *in.DrainFor
	}
	for _, c := range in.Checks {
		s.Checks = append(s.Checks, c.WithDefaults())
	}
	if s.Command == nil {
		s.Command = []string{}
	}
	if s.EnvNames == nil {
		s.EnvNames = []string{}
	}
	if s.RegisterWhenStable == nil {
		s.RegisterWhenStable = []muster.RegistrationSpec{}
	}
	return s
}

// hosting returns the instance that a service is to be in, or why it cannot be there.
func (v View) hosting(id muster.InstanceID, s *muster.Service) (*muster.Instance, error) {
	i := v.Instance(id)
	if i == nil {
		return nil, noInstance(id)
	}
	switch i.Status {
	case muster.Running, muster.Provisioning, muster.Pending:
	case muster.Stopped, muster.Failed, muster.Stopping:
		return nil, muster.Errorf(muster.Conflict, "instance %s is %s: start it first, with muster instance start %s", i.ID, i.Status, i.ID)
	default:
		return nil, muster.Errorf(muster.Conflict, "instance %s is %s: deploy into another one", i.ID, i.Status)
	}
	if n := v.NodeByUID(i.NodeUID); n != nil && n.Status != muster.Healthy {
		return nil, muster.Errorf(muster.Conflict, "node %s of instance %s is %s: deploy into an instance of another node, or wait until it is back", n.ID, i.ID, n.Status)
	}
	services := v.servicesOf(id)
	live := 0
	for _, other := range services {
		if other.Gone() {
			continue
		}
		live++
		if other.Name == s.Name {
			return nil, muster.Errorf(muster.AlreadyExists, "instance %s has a service %s already, %s: give this one another name, or remove that one", id, s.Name, other.ID)
		}
		if s.Port != 0 && other.Port == s.Port {
			return nil, &muster.Error{Code: muster.Conflict, Field: "port", Message: "the service " + string(other.ID) + " has that port in the instance: choose another"}
		}
	}
	if live >= muster.MaxServices {
		return nil, &muster.Error{Code: muster.Limit, Message: "the instance " + string(id) + " has as many services as are allowed: remove some, or deploy into another one", Details: map[string]any{"limit": "services"}}
	}
	return i, nil
}

// put writes a new service of an instance, and gives it its port.
func (r *Registry) put(v View, w *Writes, s *muster.Service, i *muster.Instance) error {
	s.InstanceID = i.ID
	if i.Status == muster.Running {
		s.Status = muster.ServiceDeploying
	} else {
		s.StatusReason = "its instance is " + string(i.Status)
	}
	if err := r.givePort(v, s, i); err != nil {
		return err
	}
	w.AssignService(s, "deployed")
	return nil
}

// givePort gives a service that is to be published the port of its node that it asks for, or one that is free.
func (r *Registry) givePort(v View, s *muster.Service, i *muster.Instance) error {
	if s.Publish == nil || i.NodeUID == "" {
		return nil
	}
	p := *s.Publish
	if p.Port == 0 {
		if p.Port = v.freePort(i.NodeUID, p.Protocol, r.ports()); p.Port == 0 {
			return muster.Errorf(muster.NoCapacity, "%s", noPort(r.ports()))
		}
	} else if other := v.holder(i.NodeUID, p); other != nil && other.ID != s.ID {
		return &muster.Error{Code: muster.Conflict, Field: "publish.port", Message: "the service " + string(other.ID) + " has that port of the node: choose another, or leave it out for any that is free"}
	}
	s.Publish = &p
	return nil
}

func (r *Registry) ports() portRange { return portRange{r.opts.PublishFrom, r.opts.PublishTo} }

// StartService starts a service that has ended or was stopped. Starting one that runs
// changes nothing.
func (r *Registry) StartService(ctx context.Context, id muster.ServiceID) (*muster.Service, int64, error) {
	return r.changeService(ctx, id, func(v View, w *Writes, s *muster.Service) (*muster.Service, error) {
		switch s.Status {
		case muster.ServiceStopped, muster.ServiceFailed, muster.ServiceStopping, muster.ServiceLost:
			return r.beginService(v, w, s, "start was asked for")
		case muster.ServiceRemoving:
			return nil, muster.Errorf(muster.Conflict, "service %s is being removed: deploy another one", s.ID)
		}
		return s, nil
	})
}

// RestartService stops a service and starts it again.
func (r *Registry) RestartService(ctx context.Context, id muster.ServiceID) (*muster.Service, int64, error) {
	return r.changeService(ctx, id, func(v View, w *Writes, s *muster.Service) (*muster.Service, error) {
		switch {
		case s.Status == muster.ServiceRemoving:
			return nil, muster.Errorf(muster.Conflict, "service %s is being removed: deploy another one", s.ID)
		case s.Announced:
			return nil, announced(s)
		}
		return r.beginService(v, w, s, "restart was asked for")
	})
}

func announced(s *muster.Service) error {
	return muster.Errorf(muster.Conflict, "service %s was announced: whoever runs its process starts and stops it; remove it to end its checks and its entries", s.ID)
}

// beginService gives a service a new generation, and the port that it did not get when there was none.
func (r *Registry) beginService(v View, w *Writes, s *muster.Service, reason string) (*muster.Service, error) {
	i := v.Instance(s.InstanceID)
	if i == nil || i.Status != muster.Running && i.Status != muster.Provisioning && i.Status != muster.Pending {
		return nil, muster.Errorf(muster.Conflict, "the instance %s of service %s does not run: start it first, with muster instance start %s", s.InstanceID, s.ID, s.InstanceID)
	}
	next := s.Clone()
	if err := r.givePort(v, next, i); err != nil {
		return nil, err
	}
	next.DrainUntil = drainService(s, i, stamp(r.opts.Now()))
	next.Generation++
	next.Desired, next.Restarts, next.PID, next.ExitCode, next.EndedAt = muster.WantRunning, 0, nil, nil, nil
	next.Status, next.StatusReason = muster.ServiceDeploying, ""
	if i.Status != muster.Running {
		next.Status, next.StatusReason = muster.ServicePending, "its instance is "+string(i.Status)
	}
	next.Health, next.HealthReason, next.CheckResults = muster.HealthUnknown, "", []muster.CheckResult{}
	w.AssignService(next, r.draining(reason, next.DrainUntil))
	return next, nil
}

// StopService stops a service; it keeps its id, its files and its log.
func (r *Registry) StopService(ctx context.Context, id muster.ServiceID) (*muster.Service, int64, error) {
	return r.changeService(ctx, id, func(v View, w *Writes, s *muster.Service) (*muster.Service, error) {
		if s.Announced {
			return nil, announced(s)
		}
		if s.Desired == muster.WantStopped || s.Status == muster.ServiceRemoving {
			return s, nil
		}
		next := s.Clone()
		next.Desired = muster.WantStopped
		next.DrainUntil = drainService(s, v.rawInstance(s.InstanceID), stamp(r.opts.Now()))
		reason := r.draining("stop was asked for", next.DrainUntil)
		switch s.Status {
		case muster.ServiceDeploying, muster.ServiceRunning, muster.ServiceRestarting:
			next.Status, next.StatusReason = muster.ServiceStopping, reason
		case muster.ServicePending:
			next.Status, next.StatusReason = muster.ServiceStopped, reason
		}
		next.Health, next.HealthReason = healthOf(next), ""
		w.AssignService(next, reason)
		return next, nil
	})
}

// RemoveService ends a service for good, and the instance that was launched for it. It
// is REMOVING until its node confirms that nothing of it is left. One that others may have
// looked up keeps its instance until then, to be drained there.
func (r *Registry) RemoveService(ctx context.Context, id muster.ServiceID) (*muster.Service, int64, error) {
	return r.changeService(ctx, id, func(v View, w *Writes, s *muster.Service) (*muster.Service, error) {
		if s.Status == muster.ServiceRemoving || s.Gone() {
			return s, nil
		}
		next := s.Clone()
		next.Desired, next.Health, next.HealthReason = muster.WantTerminated, muster.HealthUnknown, ""
		i := v.Instance(s.InstanceID)
		if reason := v.comesBack(s, i); reason == "" {
			r.removed(next, "remove was asked for")
			w.Service(next, next.StatusReason)
		} else {
			next.DrainUntil = drainService(s, i, stamp(r.opts.Now()))
			next.Status, next.StatusReason = muster.ServiceRemoving, r.draining(reason, next.DrainUntil)
			w.AssignService(next, r.draining("remove was asked for", next.DrainUntil))
		}
		if s.OwnsInstance && i != nil && (next.Gone() || !drains(s, i)) {
			r.terminate(v, w, i, "its service "+string(s.ID)+" was removed")
		}
		return next, nil
	})
}

// comesBack is what a service waits for that is to be removed: its node, to end its process;
// empty: nothing, for its instance was never on one, or goes with it, or is lost for good.
func (v View) comesBack(s *muster.Service, i *muster.Instance) string {
	n := v.NodeByUID(nodeOfInstance(i))
	switch {
	case n == nil || n.Status == muster.Removed || n.Forgotten || !n.Live() && s.OwnsInstance:
		return ""
	case !n.Live():
		return "remove was asked for, and its node " + string(n.ID) + " is gone: when that returns it is removed, or with its instance"
	}
	return "remove was asked for"
}

// endsWith reports whether an instance goes once a service is gone that is being removed.
func (v View) endsWith(id muster.InstanceID) bool {
	return slices.ContainsFunc(v.servicesOf(id), func(s *muster.Service) bool { return s.OwnsInstance && s.Status == muster.ServiceRemoving })
}

func nodeOfInstance(i *muster.Instance) muster.NodeUID {
	if i == nil {
		return ""
	}
	return i.NodeUID
}

// removed makes s a removed service.
func (r *Registry) removed(s *muster.Service, reason string) {
	s.Status, s.StatusReason, s.RemovedAt, s.DrainUntil = muster.ServiceRemoved, reason, new(stamp(r.opts.Now())), nil
	s.PID, s.Health, s.HealthReason, s.CheckResults = nil, muster.HealthUnknown, "", []muster.CheckResult{}
}

func (r *Registry) changeService(ctx context.Context, id muster.ServiceID, change func(View, *Writes, *muster.Service) (*muster.Service, error)) (*muster.Service, int64, error) {
	if err := muster.CheckID("id", string(id)); err != nil {
		return nil, 0, err
	}
	var out *muster.Service
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		v.sight = sightOf(ctx)
		s := v.Service(id)
		if s == nil || s.Gone() {
			return noService(id)
		}
		var err error
		out, err = change(v, w, s)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

func noService(id muster.ServiceID) *muster.Error {
	return muster.Errorf(muster.NotFound, "there is no service %q: see the list of services", id)
}
