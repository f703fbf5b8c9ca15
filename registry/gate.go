package registry

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/muster-cloud/muster"
)

// How long the gate lets changes gather, and nodes that are heard of for the first time,
// and how often it looks again when time alone can open it.
const gatePause, heardPause, gateLook = 20 * time.Millisecond, 200 * time.Millisecond, time.Second

// gateRest is how many times as long as it has worked the gate rests, so that with very many
// services and changes it takes a part of a core.
const gateRest = 4

// gate decides which services have their entries in the discovery feed. It keeps since
// when each has been well, which is not part of the state: a restart counts anew, and
// entries that are there stay while their services are well.
type gate struct {
	well map[muster.ServiceID]time.Time // only the gate's own goroutine touches it
}

// keepGate opens and closes the gate until ctx ends, and has the feed follow.
func (r *Registry) keepGate(ctx context.Context) error {
	g := &gate{well: map[muster.ServiceID]time.Time{}}
	for {
		changed := r.Hub.Changed() // taken before looking, so that nothing is missed
		began := time.Now()
		waits := r.turnGate(ctx, g)
		r.publish()
		rest := min(gateRest*time.Since(began), gateLook) // a database that stalls is no work
		var look <-chan time.Time
		if waits {
			look = time.After(gateLook)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			if pause(ctx, max(gatePause, rest)) != nil {
				return nil
			}
		case <-r.gate:
			if pause(ctx, max(heardPause, rest)) != nil {
				return nil
			}
		case <-look:
		}
	}
}

// turnGate brings the own entries up to what the services are, and reports whether time
// alone may change that.
func (r *Registry) turnGate(ctx context.Context, g *gate) (waits bool) {
	v := r.View()
	wanted, waits := r.wantedEntries(v, g)
	if !r.differs(v, wanted) {
		return waits
	}
	err := r.system(ctx, func(v View, w *Writes) error {
		// Decided again on the state that it is committed to.
		wanted, _ := r.wantedEntries(v, g)
		for e := range v.Entries() {
			if e.Own && wanted[e.Key] == nil {
				w.ForgetEntry(e.Clone(), r.goneBecause(v, e))
			}
		}
		for _, key := range slices.Sorted(maps.Keys(wanted)) {
			if e, before := wanted[key], v.Entry(key); before == nil || !sameEntry(before, e) {
				w.Entry(e, string(e.Status))
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		r.Logger.Warn("the entries of the discovery feed were not brought up to date; trying again", "err", err)
		return true
	}
	return waits
}

func (r *Registry) differs(v View, wanted map[string]*muster.Entry) bool {
	own := 0
	for e := range v.Entries() {
		if !e.Own {
			continue
		}
		own++
		if w := wanted[e.Key]; w == nil || !sameEntry(e, w) {
			return true
		}
	}
	return own != len(wanted)
}

func sameEntry(a, b *muster.Entry) bool {
	return sameRegistration(&a.Registration, &b.Registration) && a.Status == b.Status && slices.Equal(a.Owners, b.Owners)
}

// wantedEntries are the own entries that there should be: by hand, and of the services
// that are stable.
func (r *Registry) wantedEntries(v View, g *gate) (wanted map[string]*muster.Entry, waits bool) {
	wanted = map[string]*muster.Entry{}
	for e := range v.Entries() {
		if e.Own && slices.Contains(e.Owners, muster.ManualOwner) {
			kept := e.Clone()
			kept.Owners = []string{muster.ManualOwner}
			kept.Status = muster.EntryRegistered
			wanted[e.Key] = kept
		}
	}
	live := map[muster.ServiceID]bool{}
	for s := range v.Services() {
		if len(s.RegisterWhenStable) == 0 || s.Gone() {
			continue
		}
		live[s.ID] = true
		status, later := r.stable(v, g, s)
		waits = waits || later
		if status == "" {
			continue
		}
		for _, entry := range r.entriesOf(v, s) {
			owned{v, stamp(r.opts.Now()), wanted}.add(entry, s.ID, status)
		}
	}
	for id := range g.well {
		if !live[id] {
			delete(g.well, id)
		}
	}
	return wanted, waits
}

// owned are entries with who owns them, while that is found out.
type owned struct {
	v       View
	now     time.Time
	entries map[string]*muster.Entry
}

// add adds a service to the owners of an entry. Where several own it, the first one
// says what it is, and one that is sure is enough for it not to be stale.
func (o owned) add(entry muster.Registration, id muster.ServiceID, status muster.EntryStatus) {
	key := muster.OwnEntryKey(&entry)
	if e := o.entries[key]; e != nil {
		e.Owners = append(e.Owners, string(id))
		if status == muster.EntryRegistered {
			e.Status = status
		}
		return
	}
	e := &muster.Entry{
		Key: key, Registration: entry, Own: true, Origin: o.v.meta().clusterUID, Owners: []string{string(id)}, Status: status, RegisteredAt: o.now,
	}
	if before := o.v.Entry(key); before != nil {
		e.RegisteredAt = before.RegisteredAt
	}
	o.entries[key] = e
}

// stable says whether a service's entries should be published, and as what; empty: not.
// later says that time alone may change that.
func (r *Registry) stable(v View, g *gate, s *muster.Service) (status muster.EntryStatus, later bool) {
	published := v.owns(s.ID)
	switch why := v.unstable(s); {
	case why == "" && published:
		return muster.EntryRegistered, false
	case why == nodeSilent && published && v.Holds(muster.Brake):
		return muster.EntryStale, false
	case why != "":
		delete(g.well, s.ID)
		return "", false
	}
	now := time.Now()
	since, known := g.well[s.ID]
	if !known {
		since = now
		g.well[s.ID] = now
	}
	if now.Sub(since) < s.StableFor || !r.heardOf(v, s) {
		return "", true
	}
	return muster.EntryRegistered, false
}

// nodeSilent is why a service is not stable whose node is not HEALTHY.
const nodeSilent = "its node is not HEALTHY"

// unstable is why a service cannot be in the discovery feed; empty: it can.
func (v View) unstable(s *muster.Service) string {
	i := v.rawInstance(s.InstanceID)
	n := v.NodeByUID(nodeOfInstance(i))
	switch {
	case s.Desired != muster.WantRunning:
		return "it is to be stopped"
	case i == nil:
		return "its instance is gone"
	case i.Status != muster.Running:
		return "its instance is " + string(i.Status)
	case s.Status != muster.ServiceRunning:
		return "it is " + string(s.Status)
	case s.Health != muster.HealthOK:
		return "it is " + string(s.Health)
	case len(s.CheckResults) < len(s.Checks):
		return "its checks have not all run"
	case n == nil || !n.Live():
		return "its node is gone"
	case n.Status != muster.Healthy:
		return nodeSilent
	}
	for _, c := range s.CheckResults {
		if c.Status != muster.CheckOK {
			return "its check " + c.Name + " is " + string(c.Status)
		}
	}
	return ""
}

// heardOf reports whether the service's node was heard of in this life of the server,
// lately.
func (r *Registry) heardOf(v View, s *muster.Service) bool {
	at := r.beats.seen(nodeOfInstance(v.rawInstance(s.InstanceID)))
	return !at.IsZero() && time.Since(at) < r.opts.Liveness.UnhealthyAfter
}

// goneBecause is why an entry is withdrawn.
func (r *Registry) goneBecause(v View, e *muster.Entry) string {
	for _, owner := range e.Owners {
		s := v.Service(muster.ServiceID(owner))
		if s == nil || s.Gone() {
			continue
		}
		if why := v.unstable(s); why != "" {
			return string(s.ID) + ": " + why
		}
	}
	return "its service is gone, or no longer registers it"
}

// publish hands the own entries to the feed.
func (r *Registry) publish() {
	if r.Feed == nil {
		return
	}
	v := r.View()
	var entries []FeedEntry
	for e := range v.Entries() {
		if e.Own {
			entries = append(entries, FeedEntry{Registration: &e.Registration, Refresh: r.refreshes(v, e)})
		}
	}
	r.Feed.Keep(entries)
}

// refreshes reports whether an entry may be refreshed: one of a service of which nothing
// was heard in this life of the server runs out by itself.
func (r *Registry) refreshes(v View, e *muster.Entry) bool {
	if e.Status == muster.EntryStale || slices.Contains(e.Owners, muster.ManualOwner) {
		return true
	}
	return slices.ContainsFunc(e.Owners, func(owner string) bool {
		s := v.Service(muster.ServiceID(owner))
		return s != nil && r.heardOf(v, s)
	})
}
