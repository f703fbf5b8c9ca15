package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/scheduler"
)

// Instance returns the instance, or nil when there is none.
func (s Seen) Instance(id muster.InstanceID) *muster.Instance { return s.view().Instance(id) }

// Instances returns a page of the instances in order of their number.
func (s Seen) Instances(f *muster.InstanceFilter, page muster.PageInput) (*muster.InstanceConnection, error) {
	limit, err := page.Limit()
	if err != nil {
		return nil, err
	}
	after, err := parseEdge(page.After)
	if err != nil {
		return nil, err
	}
	v := s.view()
	f, err = v.resolve(f)
	if err != nil {
		return nil, err
	}
	id := muster.InstanceID(after)
	past := func(i *muster.Instance) bool { return after == "" || slices.Compare(number(i.ID), number(id)) > 0 }
	from := v.seen(rowsFrom[*muster.Instance](v, tableInstance, byID, id))
	all := v.Instances()
	if f != nil && f.NodeUID != "" {
		all = v.InstancesOn(f.NodeUID)
		from = all
	} else if after == "" {
		from = all
	}
	instances, info := take(where(from, func(i *muster.Instance) bool { return past(i) && f.Matches(i) }), limit, after,
		func(i *muster.Instance) string { return string(i.ID) })
	c := &muster.InstanceConnection{Edges: make([]*muster.InstanceEdge, 0, len(instances)), PageInfo: info, Count: func() int { return count(where(all, f.Matches)) }}
	for _, i := range instances {
		c.Edges = append(c.Edges, &muster.InstanceEdge{Cursor: edge(string(i.ID)), Node: i})
	}
	return c, nil
}

// resolve returns a filter whose node is a uid.
func (v View) resolve(f *muster.InstanceFilter) (*muster.InstanceFilter, error) {
	if f == nil || f.NodeID == nil {
		return f, nil
	}
	uid, err := v.uidOf(f.NodeID)
	if err != nil {
		return nil, err
	}
	resolved := *f
	resolved.NodeUID = uid
	return &resolved, nil
}

// LaunchInstance places a new instance, or with Queue lets it wait, and
// answers once that is durable; its node provisions it afterwards. The same
// requestId gives the same instance, as it is now.
func (r *Registry) LaunchInstance(ctx context.Context, in muster.LaunchInstanceInput) (*muster.Instance, int64, error) {
	if err := in.Validate(); err != nil {
		return nil, 0, err
	}
	request := r.newOnce(muster.PrincipalOf(ctx), in.RequestID, in)
	var out *muster.Instance
	if in.Queue && in.NodeID == nil && !sightOf(ctx).all() {
		return nil, 0, muster.InvalidField("nodeId", "a key for a part of the nodes cannot let an instance wait for any node; name one, or leave queue out")
	}
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		v.sight = sightOf(ctx)
		earlier, err := request.earlier(v)
		if err != nil {
			return err
		}
		if earlier != "" {
			if out = v.Instance(muster.InstanceID(earlier)); out == nil {
				return muster.Errorf(muster.NotFound, "the instance %s that this requestId launched was terminated a while ago: use a new requestId", earlier)
			}
			return nil
		}
		if out, err = r.launch(v, &in, nil); err != nil {
			return err
		}
		if out.Status == muster.Pending {
			w.Instance(out, out.StatusReason)
		} else {
			w.Assign(out, "launched")
		}
		request.record(w, string(out.ID))
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

// launch makes a new instance, placed or waiting; for is a service that is to be in it, if any.
func (r *Registry) launch(v View, in *muster.LaunchInstanceInput, service *muster.Service) (*muster.Instance, error) {
	i := r.newInstance(v, in)
	if in.NodeID != nil {
		n := v.LiveNode(*in.NodeID)
		if n == nil {
			return nil, &muster.Error{Code: muster.NotFound, Field: "nodeId", Message: noNode(*in.NodeID).Message}
		}
		i.PinnedNode = n.UID
	}
	if err := checkImage(v, in); err != nil {
		return nil, err
	}
	verdict := r.place(v, i, service)
	switch {
	case verdict.Node != nil:
		return i, nil
	case !in.Queue || verdict.Never:
		return nil, noCapacity(i, verdict)
	}
	if n := count(v.InstancesIn(muster.Pending)); n >= r.opts.MaxPending {
		return nil, &muster.Error{
			Code: muster.Limit, Message: fmt.Sprintf("%d instances wait for a node already: add nodes, or terminate some that wait", n),
			Details: map[string]any{"limit": "max-pending"},
		}
	}
	i.Status, i.StatusReason = muster.Pending, "no node fits yet"
	return i, nil
}

func (r *Registry) newInstance(v View, in *muster.LaunchInstanceInput) *muster.Instance {
	info, _ := in.Type.Info() // validated
	now := stamp(r.opts.Now())
	i := &muster.Instance{
		ID: muster.InstanceIDOf(v.meta().sequences[muster.InstanceSequence] + 1), Name: in.Name,
		Type: in.Type, CPULimit: info.CPULimit, MemLimitMB: info.MemLimitMB, BaseImage: in.Image,
		Command: slices.Clone(in.Command), EnvNames: muster.EnvNamesOf(in.Env), Env: orEmpty(in.Env),
		Labels: orEmpty(in.Labels), NodeSelector: orEmpty(in.NodeSelector),
		Volumes: append([]muster.VolumeMount{}, in.Volumes...), DiskLimitMB: in.DiskLimitMB,
		Desired: muster.WantRunning, CreatedAt: now,
	}
	if i.Name == "" {
		i.Name = string(i.ID)
	}
	if i.Command == nil {
		i.Command = []string{}
	}
	if i.EnvNames == nil {
		i.EnvNames = []string{}
	}
	if in.QueueTimeout != nil {
		deadline := now.Add(*in.QueueTimeout)
		i.QueueDeadline = &deadline
	}
	return i
}

// checkImage refuses an image that neither the server nor a node has, unless it may come while the
// instance waits.
func checkImage(v View, in *muster.LaunchInstanceInput) error {
	if in.Queue || v.Image(in.Image) != nil {
		return nil
	}
	images, nodes := map[string]bool{}, 0
	for n := range v.LiveNodes() {
		nodes++
		if n.HasImage(in.Image, "") {
			return nil
		}
		for _, ref := range n.Images {
			if !strings.Contains(ref, "@") { // else it is, or was, one of the server's
				images[ref] = true
			}
		}
	}
	for image := range v.Images() {
		images[image.Name] = true
	}
	if nodes == 0 {
		return nil // said better by NO_CAPACITY
	}
	have := "none"
	if len(images) > 0 {
		names := make([]string, 0, len(images))
		for name := range images {
			names = append(names, name)
		}
		slices.Sort(names)
		have = strings.Join(names[:min(len(names), 20)], ", ")
	}
	return muster.InvalidField("image", "neither a node nor the server has the image %q (there is: %s); use one of these, or import it", in.Image, have)
}

// StartInstance starts an instance that has ended, on its node, with a new
// generation. Starting one that runs changes nothing.
func (r *Registry) StartInstance(ctx context.Context, id muster.InstanceID) (*muster.Instance, int64, error) {
	return r.changeInstance(ctx, id, func(v View, w *Writes, i *muster.Instance) (*muster.Instance, error) {
		switch i.Status {
		case muster.Running, muster.Provisioning, muster.Pending:
			return i, nil
		case muster.Stopped, muster.Failed:
			return r.begin(v, w, i, "start was asked for")
		}
		return nil, refused(i, "started")
	})
}

// RestartInstance stops an instance and starts it with a new generation.
func (r *Registry) RestartInstance(ctx context.Context, id muster.InstanceID) (*muster.Instance, int64, error) {
	return r.changeInstance(ctx, id, func(v View, w *Writes, i *muster.Instance) (*muster.Instance, error) {
		switch i.Status {
		case muster.Running, muster.Provisioning, muster.Stopped, muster.Failed:
			return r.begin(v, w, i, "restart was asked for")
		}
		return nil, refused(i, "restarted")
	})
}

// begin gives i a new generation on its node, where it has to fit again unless
// it holds its capacity already.
func (r *Registry) begin(v View, w *Writes, i *muster.Instance, reason string) (*muster.Instance, error) {
	if i.NodeUID == "" {
		return nil, muster.Errorf(muster.Conflict, "instance %s never got a node: terminate it and launch another", i.ID)
	}
	next := i.Clone()
	if !i.Reserved {
		again := ask(i)
		again.Pinned, again.Selector, again.Mounts.Homes = i.NodeUID, nil, v.homes(i)
		if verdict := scheduler.Place(again, v.candidates(), r.opts.Scheduler); verdict.Node == nil {
			return nil, noCapacity(i, verdict)
		}
	}
	next.DrainUntil = r.drainInstance(v, i)
	next.Generation++
	next.Machine = machine(v, next)
	next.Status, next.StatusReason, next.Desired, next.Reserved = muster.Provisioning, "", muster.WantRunning, true
	next.PID, next.ExitCode, next.StartedAt, next.EndedAt, next.Output = nil, nil, nil, nil, ""
	w.Assign(next, r.draining(reason, next.DrainUntil))
	return next, nil
}

// StopInstance stops an instance; it keeps its id and its disk. Stopping one
// that has ended changes nothing but what is desired.
func (r *Registry) StopInstance(ctx context.Context, id muster.InstanceID) (*muster.Instance, int64, error) {
	return r.changeInstance(ctx, id, func(v View, w *Writes, i *muster.Instance) (*muster.Instance, error) {
		switch i.Status {
		case muster.Running, muster.Provisioning:
		case muster.Stopping, muster.Stopped, muster.Failed:
			if i.Desired == muster.WantStopped {
				return i, nil
			}
		default:
			return nil, refused(i, "stopped")
		}
		return r.stop(v, w, i, "stop was asked for"), nil
	})
}

// stop has an instance stopped, once those who have looked its services up are done with them.
func (r *Registry) stop(v View, w *Writes, i *muster.Instance, reason string) *muster.Instance {
	next := i.Clone()
	next.Desired, next.DrainUntil = muster.WantStopped, r.drainInstance(v, i)
	reason = r.draining(reason, next.DrainUntil)
	if i.Status == muster.Running || i.Status == muster.Provisioning {
		next.Status, next.StatusReason = muster.Stopping, reason
	}
	w.Assign(next, reason)
	return next
}

// TerminateInstance ends an instance for good. It is TERMINATING until its node
// confirms that nothing of it is left.
func (r *Registry) TerminateInstance(ctx context.Context, id muster.InstanceID) (*muster.Instance, int64, error) {
	return r.changeInstance(ctx, id, func(v View, w *Writes, i *muster.Instance) (*muster.Instance, error) {
		return r.terminate(v, w, i, "terminate was asked for"), nil
	})
}

// terminate ends an instance unless it is ending already.
func (r *Registry) terminate(v View, w *Writes, i *muster.Instance, reason string) *muster.Instance {
	if i.Status == muster.Terminating || i.Status == muster.Terminated {
		return i
	}
	next := i.Clone()
	next.Desired = muster.WantTerminated
	n := v.NodeByUID(i.NodeUID)
	if n == nil || !n.Live() {
		r.terminated(next, reason)
		w.Instance(next, next.StatusReason)
		return next
	}
	next.DrainUntil = r.drainInstance(v, i)
	next.Status, next.StatusReason = muster.Terminating, r.draining(reason, next.DrainUntil)
	w.Assign(next, next.StatusReason)
	return next
}

// AdoptInstance makes an UNKNOWN instance one of this registry's: it is from then
// on as if it had been launched here, and is to be as it was found.
func (r *Registry) AdoptInstance(ctx context.Context, id muster.InstanceID) (*muster.Instance, int64, error) {
	return r.changeInstance(ctx, id, func(_ View, w *Writes, i *muster.Instance) (*muster.Instance, error) {
		if i.Status != muster.Unknown {
			return nil, muster.Errorf(muster.Conflict, "instance %s is %s: only one that is UNKNOWN can be adopted", i.ID, i.Status)
		}
		next := i.Clone()
		next.Status, next.StatusReason, next.Desired = muster.Running, "adopted", muster.WantRunning
		if !i.Reserved {
			next.Status, next.Desired = muster.Stopped, muster.WantStopped
		}
		w.Assign(next, "adopted")
		return next, nil
	})
}

// changeInstance runs a change of one instance.
func (r *Registry) changeInstance(ctx context.Context, id muster.InstanceID, change func(View, *Writes, *muster.Instance) (*muster.Instance, error)) (*muster.Instance, int64, error) {
	if err := muster.CheckID("id", string(id)); err != nil {
		return nil, 0, err
	}
	var out *muster.Instance
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		v.sight = sightOf(ctx)
		i := v.Instance(id)
		if i == nil {
			return noInstance(id)
		}
		var err error
		out, err = change(v, w, i)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

func refused(i *muster.Instance, verb string) *muster.Error {
	return muster.Errorf(muster.Conflict, "instance %s is %s and cannot be %s: wait until it has settled, or terminate it", i.ID, i.Status, verb)
}

func noInstance(id muster.InstanceID) *muster.Error {
	return muster.Errorf(muster.NotFound, "there is no instance %q: see the list of instances", id)
}
