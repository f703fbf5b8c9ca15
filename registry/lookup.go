package registry

import (
	"context"
	"slices"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

// Registrations looks entries up, own and foreign, from memory alone. With preferred, of
// those that are not stale only the ones of the best priority there is, else all. Where
// others write what is ours too, ours alone is found.
func (r *Registry) Registrations(f muster.RegistrationFilter, preferred bool) (*muster.Registrations, error) {
	if err := f.Normalise(); err != nil {
		return nil, err
	}
	v := r.View()
	all := v.Entries()
	if f.Service != "" {
		all = v.named(f.Service)
	}
	entries := []*muster.Entry{}
	for e := range all {
		if f.Matches(&e.Registration) {
			entries = append(entries, e)
		}
	}
	entries = muster.DistinctEntries(sortEntries(entries))
	if preferred {
		entries = muster.PreferredEntries(entries)
	}
	out := &muster.Registrations{Entries: entries, Revision: v.Head().Revision}
	out.Complete, out.AsOf = r.feed.status(r.opts.Now())
	if r.Feed == nil {
		out.Complete, out.AsOf = true, r.opts.Now()
	}
	return out, nil
}

// WatchRegistrations follows what is registered and removed. Refreshes are no changes.
func (r *Registry) WatchRegistrations(ctx context.Context, f muster.RegistrationFilter, q watch.Request) (<-chan *muster.Event, error) {
	if err := f.Normalise(); err != nil {
		return nil, err
	}
	return r.Hub.Serve(ctx, watch.Spec{
		Match: func(c *muster.Change) (bool, bool) {
			return c.Kind == muster.KindRegistration && f.Matches(&c.Entry.Registration), c.Deleted
		},
		Snapshot: r.Seen(ctx).snapshot(func(v View) []walk { return []walk{v.presentEntries(f)} }),
	}, q)
}

func (v View) presentEntries(f muster.RegistrationFilter) walk {
	it := v.iterator(tableEntry, byID)
	return func() (*muster.Change, bool) {
		for object := it.Next(); object != nil; object = it.Next() {
			if e := object.(*muster.Entry); f.Matches(&e.Registration) {
				return &muster.Change{
					Revision: e.Revision, At: v.meta().at, Kind: muster.KindRegistration, ObjectID: e.ObjectID(), Entry: e,
					PreviousStatus: string(e.Status), Status: string(e.Status),
				}, true
			}
		}
		return nil, false
	}
}

// Register enters an entry by hand, or changes one that was. FORBIDDEN: it is outside of
// the key's scope.
func (r *Registry) Register(ctx context.Context, in muster.RegisterInput) (*muster.Entry, int64, error) {
	if err := in.Validate(); err != nil {
		return nil, 0, err
	}
	entry := in.Registration()
	if err := entry.Validate(); err != nil {
		return nil, 0, err
	}
	if err := mayRegister(ctx, &entry); err != nil {
		return nil, 0, err
	}
	if r.Feed != nil {
		if err := r.Feed.CheckTTL("ttl", entry.TTL); err != nil {
			return nil, 0, err
		}
	}
	entry.Annotations = orEmpty(entry.Annotations)
	var out *muster.Entry
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		key := muster.OwnEntryKey(&entry)
		before := v.Entry(key)
		out = &muster.Entry{
			Key: key, Registration: entry, Own: true, Origin: v.meta().clusterUID, Owners: []string{muster.ManualOwner},
			Status: muster.EntryRegistered, RegisteredAt: stamp(r.opts.Now()),
		}
		if before != nil {
			out.RegisteredAt = before.RegisteredAt
			for _, owner := range before.Owners {
				if owner != muster.ManualOwner {
					out.Owners = append(out.Owners, owner)
				}
			}
			if sameEntry(before, out) {
				out = before
				return nil
			}
		}
		w.Entry(out, "registered by "+muster.PrincipalOf(ctx).Name)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

// Deregister takes an entry out that was registered by hand. CONFLICT: it is a service's.
func (r *Registry) Deregister(ctx context.Context, in muster.DeregisterInput) (*muster.Entry, int64, error) {
	entry := muster.Registration{Cluster: in.Cluster, Protocol: in.Protocol, Service: in.Service, Address: in.Address, Port: in.Port}
	if err := entry.Validate(); err != nil {
		return nil, 0, err
	}
	if err := mayRegister(ctx, &entry); err != nil {
		return nil, 0, err
	}
	var out *muster.Entry
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		out = v.Entry(muster.OwnEntryKey(&entry))
		switch {
		case out == nil:
			return muster.Errorf(muster.NotFound, "nothing is registered for %s: see the list of registrations", muster.OwnEntryKey(&entry))
		case !slices.Contains(out.Owners, muster.ManualOwner):
			return muster.Errorf(muster.Conflict, "%s is registered by %s while that is stable: stop or remove the service", out.Key, out.Owners[0])
		case len(out.Owners) == 1:
			w.ForgetEntry(out.Clone(), "deregistered by "+muster.PrincipalOf(ctx).Name)
		default:
			next := out.Clone()
			next.Owners = slices.DeleteFunc(next.Owners, func(owner string) bool { return owner == muster.ManualOwner })
			w.Entry(next, "deregistered by "+muster.PrincipalOf(ctx).Name)
			out = next
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

// mayRegister refuses a REGISTRAR what its scope leaves out, and others whose key is for a
// part of the nodes: the feed is the whole cluster's.
func mayRegister(ctx context.Context, e *muster.Registration) error {
	p := muster.PrincipalOf(ctx)
	if p.Role != muster.Registrar {
		return wholeCluster(ctx)
	}
	if !p.Scope.HasCluster(e.Cluster) || !p.Scope.HasService(e.Service) {
		return muster.Errorf(muster.Forbidden, "the key %s (%s) may not register the service %s in the cluster %s: its scope leaves that out", p.Key, p.Name, e.Service, e.Cluster)
	}
	return nil
}

// Withheld is what services would have in the feed if they were stable, with their health.
type Withheld struct {
	*muster.Registration
	Health muster.ServiceHealth
}

// Withheld returns the entries of services that should run and are not in the feed, because
// they are not stable.
func (r *Registry) Withheld(f muster.RegistrationFilter) ([]Withheld, error) {
	if err := f.Normalise(); err != nil {
		return nil, err
	}
	v := r.View()
	var out []Withheld
	for s := range v.Services() {
		if len(s.RegisterWhenStable) == 0 || s.Gone() || s.Desired != muster.WantRunning || v.owns(s.ID) {
			continue
		}
		for _, entry := range r.entriesOf(v, s) {
			if f.Matches(&entry) && v.Entry(muster.OwnEntryKey(&entry)) == nil {
				out = append(out, Withheld{&entry, v.health(s).Health})
			}
		}
	}
	return out, nil
}
