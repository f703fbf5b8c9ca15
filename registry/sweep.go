package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/liveness"
)

func (r *Registry) wakeSweeper() {
	select {
	case r.sweeps <- struct{}{}:
	default: // it is awake
	}
}

// sweep looks at the nodes' silence, each interval and when it is woken.
func (r *Registry) sweep(ctx context.Context) error {
	ticker := time.NewTicker(r.opts.SweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-r.sweeps:
		}
		r.sweepOnce(ctx)
	}
}

// listen looks at the clocks and asks the server's own port, apart from the
// sweeper: that one may have to wait for a commit. It looks often enough that
// its own pauses are never taken for stillness.
func (r *Registry) listen(ctx context.Context) error {
	clocks := time.NewTicker(max(min(r.opts.SweepInterval, r.opts.Liveness.Interval/4), time.Millisecond))
	defer clocks.Stop()
	port := time.NewTicker(max(r.opts.Liveness.Interval/2, time.Millisecond))
	defer port.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-clocks.C:
			r.pulse.Look(time.Now())
		case <-port.C:
			r.probe(ctx)
		}
	}
}

func (r *Registry) probe(ctx context.Context) {
	if r.opts.Probe == nil {
		return
	}
	asked, cancel := context.WithTimeout(ctx, r.opts.Liveness.Interval/2)
	defer cancel()
	if err := r.opts.Probe(asked); err != nil && ctx.Err() == nil {
		r.pulse.Deaf("this server's own port does not answer, so that no beat may come through: " + err.Error())
	}
}

// survey is what a sweep sees.
type survey struct {
	now      time.Time
	view     View
	believed time.Time // silence counts from here at the earliest
	count    liveness.Count
	expires  bool // somebody would turn UNHEALTHY or be pruned
	silent   []*muster.Node
	grace    bool
}

func (r *Registry) survey(now time.Time) (*survey, bool) {
	s := &survey{now: now, view: r.View()}
	r.mu.Lock()
	s.believed = r.believed
	r.mu.Unlock()
	if s.believed.IsZero() {
		return nil, false
	}
	s.grace = now.Sub(s.believed) < r.opts.Liveness.UnhealthyAfter
	for n := range s.view.LiveNodes() {
		o := r.observation(n, now, s.believed)
		s.count.Add(r.opts.Liveness, o)
		s.expires = s.expires || r.opts.Liveness.Expires(o)
		if r.opts.Liveness.Overdue(o) {
			s.silent = append(s.silent, n)
		}
	}
	return s, true
}

// observation is a node as the sweeper sees it.
func (r *Registry) observation(n *muster.Node, now, believed time.Time) liveness.Observed {
	beat := r.beats.copyOf(n.UID)
	last := later(beat.at, believed)
	return liveness.Observed{
		Status: n.Status, Swept: beat.swept, Uncounted: beat.uncounted,
		Silence: now.Sub(last), PruneSilence: now.Sub(later(last, beat.freshFrom)),
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (r *Registry) sweepOnce(ctx context.Context) {
	now := time.Now()
	r.pulse.Look(now)
	postponed := r.postpone(now)
	s, ok := r.survey(now)
	if !ok {
		return
	}
	turns := append(r.brakeTurn(s), r.postponementTurn(s, postponed)...)
	brake := brakeAfter(s.view, turns)
	var nodes []*muster.Node
	for n := range s.view.LiveNodes() {
		if r.opts.Liveness.Decide(r.observation(n, now, s.believed), brake).Keep {
			r.beats.setSwept(n.UID, n.Status == muster.Unhealthy)
		} else {
			nodes = append(nodes, n)
		}
	}
	if len(turns) == 0 && len(nodes) == 0 {
		return
	}
	if err := r.system(ctx, r.turn(turns, nodes, s.believed)); err != nil {
		r.Logger.Warn("what a sweep found was not committed; the next one tries again", "nodes", len(nodes), "conditions", len(turns), "err", err)
		return
	}
	r.tell(turns, nodes)
}

// tell logs what a sweep has turned.
func (r *Registry) tell(conditions []*muster.Condition, nodes []*muster.Node) {
	for _, c := range conditions {
		r.Logger.Warn("condition turned", "condition", c.Name, "to", c.Status, "reason", c.Reason)
	}
	v := r.View()
	for _, before := range nodes {
		if n := v.NodeByUID(before.UID); n != nil && n.Status != before.Status {
			r.Logger.Info("node turned", "node", n.ID, "from", before.Status, "to", n.Status, "reason", n.StatusReason)
		}
	}
}

// postpone lets silence count from now on when no beat could be heard until
// now, and returns why.
func (r *Registry) postpone(now time.Time) string {
	why := r.pulse.Take()
	r.mu.Lock()
	defer r.mu.Unlock()
	if why == "" || r.believed.IsZero() {
		return ""
	}
	r.believed = now
	return why
}

func (r *Registry) postponementTurn(s *survey, why string) []*muster.Condition {
	held := s.view.Holds(muster.ExpiryPostponed)
	switch {
	case why != "" && !held:
		// It has no Until: as long as beats cannot be heard it is put off further.
		return []*muster.Condition{{Name: muster.ExpiryPostponed, Status: muster.Holds, Reason: why + "; no node expires before " + r.opts.Liveness.UnhealthyAfter.String() + " have passed without that"}}
	case held && !s.grace:
		return []*muster.Condition{{Name: muster.ExpiryPostponed, Status: muster.Clear, Reason: "beats have been heard for long enough again"}}
	}
	return nil
}

// brakeTurn decides whether the brake takes hold or ends.
func (r *Registry) brakeTurn(s *survey) []*muster.Condition {
	held := s.view.Holds(muster.Brake)
	since := r.brakingSince(held, s.now)
	switch {
	case !held && s.expires && s.count.Brakes():
		until := stamp(r.opts.Now()).Add(r.opts.Liveness.BrakeMax)
		return []*muster.Condition{{
			Name: muster.Brake, Status: muster.Holds, Until: &until,
			Reason: fmt.Sprintf("%d of %d nodes fell silent together: nobody is pruned until they return, or the brake is released (muster brake release), or %s have passed", s.count.Overdue, s.count.Nodes, r.opts.Liveness.BrakeMax),
		}}
	case held && s.now.Sub(since) >= r.opts.Liveness.BrakeMax:
		r.freshen(s, true)
		return []*muster.Condition{{Name: muster.Brake, Status: muster.Clear, Reason: fmt.Sprintf("it has held for %s; who is still silent is pruned after %s more", r.opts.Liveness.BrakeMax, r.opts.Liveness.PruneAfter)}}
	case held && !s.grace && !s.count.Brakes():
		r.freshen(s, false)
		return []*muster.Condition{{Name: muster.Brake, Status: muster.Clear, Reason: fmt.Sprintf("%d of %d nodes beat", s.count.Nodes-s.count.Overdue, s.count.Nodes)}}
	}
	return nil
}

// brakeAfter is whether the brake holds once the conditions have turned.
func brakeAfter(v View, turns []*muster.Condition) bool {
	for _, c := range turns {
		if c.Name == muster.Brake {
			return c.Status == muster.Holds
		}
	}
	return v.Holds(muster.Brake)
}

// brakingSince is since when this server has seen the brake hold.
func (r *Registry) brakingSince(held bool, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !held:
		r.braking = time.Time{}
	case r.braking.IsZero():
		r.braking = now
	}
	return r.braking
}

// freshen gives those that are silent when the brake ends a fresh prune clock.
func (r *Registry) freshen(s *survey, uncounted bool) {
	for _, n := range s.silent {
		r.beats.freshen(n.UID, s.now, uncounted)
	}
}

// turn commits what a sweep found, as it is by then.
func (r *Registry) turn(conditions []*muster.Condition, nodes []*muster.Node, believed time.Time) Mutation {
	return func(v View, w *Writes) error {
		brake := brakeAfter(v, conditions)
		for _, c := range conditions {
			if v.Holds(c.Name) != (c.Status == muster.Holds) {
				next := *c
				next.Since = stamp(r.opts.Now())
				w.Condition(&next)
			}
		}
		for _, seen := range nodes {
			n := v.NodeByUID(seen.UID)
			if n == nil || !n.Live() {
				continue
			}
			if d := r.opts.Liveness.Decide(r.observation(n, time.Now(), believed), brake); !d.Keep {
				r.takeOut(v, w, n, d.Status, d.Reason)
			}
		}
		return nil
	}
}

// ReleaseBrake ends the brake: who is still silent has the whole span before it
// is pruned, and is left out of the count until it beats. CONFLICT when it does
// not hold.
func (r *Registry) ReleaseBrake(ctx context.Context, reason string) (*muster.Condition, int64, error) {
	if err := wholeCluster(ctx); err != nil {
		return nil, 0, err
	}
	if err := muster.CheckText("reason", reason, muster.MaxReasonBytes); err != nil {
		return nil, 0, err
	}
	if reason == "" {
		reason = "released by " + muster.PrincipalOf(ctx).Name
	}
	if s, ok := r.survey(time.Now()); ok && s.view.Holds(muster.Brake) {
		r.freshen(s, true)
	}
	c := &muster.Condition{Name: muster.Brake, Status: muster.Clear, Reason: reason}
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		if !v.Holds(muster.Brake) {
			return muster.Errorf(muster.Conflict, "the brake does not hold: there is nothing to release")
		}
		c = &muster.Condition{Name: c.Name, Status: c.Status, Reason: c.Reason, Since: stamp(r.opts.Now())}
		w.Condition(c)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return c, revision, nil
}

// takeOut gives a node a status; one that leaves the registry takes its
// instances along: they are LOST, and those being removed count as gone.
func (r *Registry) takeOut(v View, w *Writes, n *muster.Node, s muster.NodeStatus, reason string) {
	after := n.Clone()
	after.Status, after.StatusReason = s, reason
	w.Node(after, reason)
	if after.Live() {
		return
	}
	for i := range v.InstancesOn(n.UID) {
		if i.Status == muster.Terminated || i.Status == muster.Lost {
			continue
		}
		lost := i.Clone()
		lost.Reserved, lost.PID = false, nil
		if i.Status == muster.Terminating || v.endsWith(i.ID) {
			lost.Desired = muster.WantTerminated
			r.terminated(lost, "its node "+string(n.ID)+" is gone")
		} else {
			lost.Status, lost.StatusReason = muster.Lost, "its node "+string(n.ID)+" is gone: "+reason
		}
		w.Instance(lost, lost.StatusReason)
	}
}

// terminated makes i a terminated instance.
func (r *Registry) terminated(i *muster.Instance, reason string) {
	at := stamp(r.opts.Now())
	i.Status, i.StatusReason, i.TerminatedAt = muster.Terminated, reason, &at
	i.Reserved, i.PID, i.DrainUntil = false, nil, nil
}
