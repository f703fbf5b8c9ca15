package registry

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/muster-cloud/muster"
)

// completed are the entries that a service is to have, with the default priority where none was given.
func completed(specs []muster.RegistrationSpec) []muster.RegistrationSpec {
	all := slices.Clone(specs)
	for k := range all {
		if all[k].Priority == nil {
			all[k].Priority = new(muster.DefaultPriority)
		}
	}
	return all
}

// entriesOf are the entries of a service, with what they leave open filled in. What
// cannot be an entry after all is left out; EntryProblems says why.
func (r *Registry) entriesOf(v View, s *muster.Service) []muster.Registration {
	var out []muster.Registration
	for k := range s.RegisterWhenStable {
		if entry, err := v.entryOf(s, &s.RegisterWhenStable[k]); err == nil {
			entry.TTL = r.atLeast(entry.TTL)
			out = append(out, *entry)
		}
	}
	return out
}

// beatsPerTTL is how many beats of its node an entry of a service outlives at least: a server that starts
// refreshes it once it has heard one.
const beatsPerTTL = 3

func (r *Registry) atLeast(ttl *time.Duration) *time.Duration {
	least := (beatsPerTTL*r.opts.Liveness.Interval + time.Second - 1).Truncate(time.Second)
	if ttl == nil || *ttl == muster.RegistrationTTLForever || *ttl >= least {
		return ttl
	}
	return &least
}

// checkTTLs refuses entries of a service that live longer than the feed keeps anything.
func (r *Registry) checkTTLs(specs []muster.RegistrationSpec) error {
	if r.Feed == nil {
		return nil
	}
	for k := range specs {
		if err := r.Feed.CheckTTL("registerWhenStable.ttl", specs[k].TTL); err != nil {
			return err
		}
	}
	return nil
}

// EntryProblems says why entries of a service cannot be published as they are.
func (r *Registry) EntryProblems(s *muster.Service) []string {
	problems := []string{}
	for k := range s.RegisterWhenStable {
		if _, err := r.View().entryOf(s, &s.RegisterWhenStable[k]); err != nil {
			problems = append(problems, err.Error())
		}
	}
	return problems
}

// NotRegistered is why a service's entries are not in the discovery feed; empty: they
// are, or it has none.
func (r *Registry) NotRegistered(s *muster.Service) string {
	v := r.View()
	switch {
	case len(s.RegisterWhenStable) == 0 || s.Gone() || v.owns(s.ID):
		return ""
	case v.unstable(s) != "":
		return v.unstable(s)
	case len(r.entriesOf(v, s)) == 0:
		return "none of its entries can be published"
	}
	return "it has not been well for " + s.StableFor.String() + " yet"
}

// entryOf is one entry of a service as it is now.
func (v View) entryOf(s *muster.Service, spec *muster.RegistrationSpec) (*muster.Registration, error) {
	i := v.rawInstance(s.InstanceID)
	n := v.NodeByUID(nodeOfInstance(i))
	if i == nil || n == nil {
		return nil, muster.Errorf(muster.Conflict, "service %s is on no node yet", s.ID)
	}
	safe := *s
	safe.Env = nil
	bare := *i
	bare.Env = nil
	facts := muster.EntryFacts{Node: n, Instance: &bare, Service: &safe}
	e := &muster.Registration{
		Cluster: spec.Cluster, Protocol: spec.Protocol, Service: spec.Service, Port: spec.Port, Priority: muster.DefaultPriority,
		TTL: spec.TTL, Annotations: muster.Map{},
	}
	if e.Service == "" {
		e.Service = s.Name
	}
	if spec.Priority != nil {
		e.Priority = *spec.Priority
	}
	var err error
	if e.Address, err = facts.FillIn("address", spec.Address); err != nil {
		return nil, err
	}
	for name, value := range spec.Annotations {
		if e.Annotations[name], err = facts.FillIn("annotations."+name, value); err != nil {
			return nil, err
		}
	}
	complete(e, s, i, n)
	return e, e.Validate()
}

// complete fills in where a service is reached: at the node's address and the published
// port, or where nothing is published at the instance's own.
func complete(e *muster.Registration, s *muster.Service, i *muster.Instance, n *muster.Node) {
	published := s.Publish != nil && s.Publish.Port != 0
	if e.Address == "" {
		e.Address = i.Addr
		if published {
			e.Address = n.Addr
		}
	}
	if e.Port != nil {
		return
	}
	switch {
	case published && e.Address == n.Addr:
		e.Port = &s.Publish.Port
	case s.Port != 0:
		e.Port = &s.Port
	}
}

// Entry returns an entry of the discovery feed, or nil.
func (v View) Entry(key string) *muster.Entry {
	e, _ := v.one(tableEntry, byID, key).(*muster.Entry)
	return e
}

// Entries walks all entries, own and foreign, in order of their key.
func (v View) Entries() iter.Seq[*muster.Entry] { return rows[*muster.Entry](v, tableEntry, byID) }

// owns reports whether a service has an entry in the feed.
func (v View) owns(id muster.ServiceID) bool { return v.one(tableEntry, byOwner, string(id)) != nil }

// named walks the entries of a service's name.
func (v View) named(service string) iter.Seq[*muster.Entry] {
	return rows[*muster.Entry](v, tableEntry, byName, service)
}

// ownerIndex finds entries by each of their owners.
type ownerIndex struct{}

func (ownerIndex) FromObject(object any) (bool, [][]byte, error) {
	e, ok := object.(*muster.Entry)
	if !ok {
		return false, nil, fmt.Errorf("index: want an entry, got %T", object)
	}
	keys := make([][]byte, len(e.Owners))
	for i, owner := range e.Owners {
		keys[i] = text(owner)
	}
	return len(keys) > 0, keys, nil
}

func (ownerIndex) FromArgs(args ...any) ([]byte, error) { return textArg[string](args) }

// sortEntries orders them as lookups give them.
func sortEntries(entries []*muster.Entry) []*muster.Entry {
	slices.SortFunc(entries, muster.CompareEntries)
	return entries
}
