package registry

import (
	"context"
	"time"

	"github.com/muster-cloud/muster"
)

// keepHouse forgets what has had its time: instances that were terminated,
// waiting ones whose deadline passed, requestIds, and the oldest changes.
func (r *Registry) keepHouse(ctx context.Context) error {
	flush := time.NewTicker(r.opts.FlushInterval)
	defer flush.Stop()
	sweep := time.NewTicker(r.opts.SweepInterval)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sweep.C:
			r.expire(ctx)
		case <-flush.C:
			r.tidy(ctx)
		}
	}
}

// expire ends what has a deadline. It commits nothing when nothing is due.
func (r *Registry) expire(ctx context.Context) {
	v, now := r.View(), r.opts.Now()
	due := len(r.overdue(v, now)) + len(r.outlived(v, now)) + len(r.buried(v, now)) + len(v.drainSteps(now)) +
		len(r.outlivedServices(v, now)) + len(r.endedKeys(v, now)) + len(r.endedTokens(v, now)) + len(r.endedOverlaps(v, now))
	if due == 0 {
		return
	}
	err := r.system(ctx, func(v View, w *Writes) error {
		for _, i := range r.overdue(v, now) {
			next := i.Clone()
			at := stamp(now)
			next.Status, next.StatusReason, next.EndedAt = muster.Failed, "no node fitted before its deadline", &at
			w.Instance(next, next.StatusReason)
		}
		for _, i := range r.outlived(v, now) {
			w.Forget(i, "terminated a while ago") // with its services
			for _, s := range v.servicesOf(i.ID) {
				r.outputs.forget(s.ID)
			}
		}
		for _, d := range v.drainSteps(now) {
			r.drainStep(v, w, d, now)
		}
		for _, s := range r.outlivedServices(v, now) {
			w.ForgetService(s, "removed a while ago")
			r.outputs.forget(s.ID)
		}
		for _, n := range r.buried(v, now) {
			w.ForgetNode(n, "pruned a while ago")
		}
		for _, k := range r.endedKeys(v, now) {
			w.ForgetKey(k, "ended a while ago")
		}
		for _, k := range r.endedOverlaps(v, now) {
			next := k.Clone()
			next.FormerHash, next.FormerUntil = "", nil
			w.Key(next, "the secret that it had before has ended")
		}
		for _, t := range r.endedTokens(v, now) {
			w.ForgetToken(t, "ended a while ago")
		}
		return nil
	})
	if err != nil {
		r.Logger.Warn("what is due was not ended; trying again", "err", err)
	}
}

func (r *Registry) overdue(v View, now time.Time) (due []*muster.Instance) {
	for i := range v.InstancesIn(muster.Pending) {
		if i.QueueDeadline != nil && !now.Before(*i.QueueDeadline) {
			due = append(due, i)
		}
	}
	return due
}

func (r *Registry) outlived(v View, now time.Time) (due []*muster.Instance) {
	for i := range v.InstancesIn(muster.Terminated) {
		if r.hasOutlived(i, now) {
			due = append(due, i)
		}
	}
	return due
}

func (r *Registry) hasOutlived(i *muster.Instance, now time.Time) bool {
	return i.Status == muster.Terminated && i.TerminatedAt != nil && now.Sub(*i.TerminatedAt) >= r.opts.TerminatedTTL
}

// buried returns the pruned nodes whose time to return has passed. One that
// instances were lost with stays until they are terminated: it could bring them back.
func (r *Registry) buried(v View, now time.Time) (due []*muster.Node) {
	for n := range v.Nodes() {
		if n.Status == muster.Pruned && now.Sub(n.StatusSince) >= r.opts.Tombstone && !v.refersTo(n.UID) {
			due = append(due, n)
		}
	}
	return due
}

// outlivedServices returns the services that were removed a while ago, but those that go
// with their instances.
func (r *Registry) outlivedServices(v View, now time.Time) (due []*muster.Service) {
	for s := range v.Services() {
		if s.RemovedAt == nil || now.Sub(*s.RemovedAt) < r.opts.TerminatedTTL {
			continue
		}
		if i := v.rawInstance(s.InstanceID); i == nil || !r.hasOutlived(i, now) {
			due = append(due, s)
		}
	}
	return due
}

// endedKeys returns the keys that have opened nothing for as long as the audit is kept, and
// sessions of which there can be many for a shorter time: the audit says who signed in.
func (r *Registry) endedKeys(v View, now time.Time) (due []*muster.AccessKey) {
	for k := range v.Keys() {
		at := k.RevokedAt
		if at == nil {
			at = k.ExpiresAt
		}
		keep := r.opts.KeepAudit
		if k.Parent != "" {
			keep = min(keep, sessionKept)
		}
		if at != nil && now.Sub(*at) >= keep {
			due = append(due, k)
		}
	}
	return due
}

// endedOverlaps returns the keys whose former secret was good for a while, which has
// passed. That is a change, so that the streams end which it had opened before it was
// replaced.
func (r *Registry) endedOverlaps(v View, now time.Time) (due []*muster.AccessKey) {
	for k := range v.Keys() {
		if k.FormerUntil != nil && !now.Before(*k.FormerUntil) && k.StatusAt(now) == muster.KeyActive {
			due = append(due, k)
		}
	}
	return due
}

func (r *Registry) endedTokens(v View, now time.Time) (due []*muster.JoinToken) {
	for t := range v.Tokens() {
		if now.Sub(t.ExpiresAt) >= r.opts.KeepAudit {
			due = append(due, t)
		}
	}
	return due
}

// refersTo reports whether an instance is on the node or pinned to it.
func (v View) refersTo(uid muster.NodeUID) bool {
	if v.one(tableInstance, byNode, uid) != nil {
		return true // by the index, for this is asked at each sweep
	}
	for i := range v.Instances() {
		if i.PinnedNode == uid {
			return true
		}
	}
	return false
}

// tidy is what a minute brings: it writes nothing to the log.
func (r *Registry) tidy(ctx context.Context) {
	if err := r.flushLastSeen(ctx); err != nil {
		r.Logger.Warn("storing when the nodes were last seen failed", "err", err)
	}
	if err := r.forgetRequests(ctx); err != nil {
		r.Logger.Warn("forgetting old requestIds failed", "err", err)
	}
	if err := r.flushLastUsed(ctx); err != nil {
		r.Logger.Warn("storing when the keys were last used failed", "err", err)
	}
	if err := r.Store.ForgetAudit(ctx, stamp(r.opts.Now()).Add(-r.opts.KeepAudit)); err != nil {
		r.Logger.Warn("forgetting the old audit failed", "err", err)
	}
	if err := r.compact(ctx); err != nil {
		r.Logger.Warn("compacting the change log failed", "err", err)
	}
}

// compact drops the changes that are too many or too old. The hub's floor moves
// first: what it says can be resumed from is all there.
func (r *Registry) compact(ctx context.Context) error {
	_, _, err := r.Store.Compact(ctx, muster.Retention{
		Keep: r.opts.KeepChanges, MaxAge: r.opts.KeepChangesFor, Now: r.opts.Now(), Raise: r.Hub.SetFloor,
	})
	return err
}

// forgetRequests drops the requestIds that have had their time, from the
// database and then from memory.
func (r *Registry) forgetRequests(ctx context.Context) error {
	before := stamp(r.opts.Now()).Add(-r.opts.RequestTTL)
	if len(r.View().requestsBefore(before)) == 0 {
		return nil
	}
	if err := r.Store.ForgetRequests(ctx, before); err != nil {
		return err
	}
	return r.system(ctx, func(v View, w *Writes) error {
		for _, request := range v.requestsBefore(before) {
			w.forgetRequest(request)
		}
		return nil
	})
}

func (v View) requestsBefore(t time.Time) (old []*muster.Request) {
	for request := range rows[*muster.Request](v, tableRequest, byID) {
		if request.At.Before(t) {
			old = append(old, request)
		}
	}
	return old
}
