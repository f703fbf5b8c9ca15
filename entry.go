package muster

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// EntryStatus is what became of an entry of the discovery feed.
type EntryStatus string

// The statuses of entries.
const (
	EntryRegistered EntryStatus = "REGISTERED"
	// EntryStale: its node fell silent while the brake holds: it may be gone.
	EntryStale EntryStatus = "STALE"
)

// Entry is a registration that is known: one of this cluster's own, or one that
// somebody else wrote into the feed.
type Entry struct {
	Key          string `gorm:"column:key;primaryKey" json:"key"`
	Registration `gorm:"embedded"`
	// Own says that this cluster publishes it.
	Own bool `gorm:"column:own" json:"own"`
	// Origin is the uid of the cluster that published it; empty: nobody said.
	Origin string `gorm:"column:origin" json:"origin"`
	// Subject is that which a foreign one arrived on.
	Subject string `gorm:"column:subject" json:"subject,omitempty"`
	// Owners are the services that it is of, or ManualOwner.
	Owners       []string    `gorm:"column:owners;serializer:json" json:"owners"`
	Status       EntryStatus `gorm:"column:status" json:"status"`
	RegisteredAt time.Time   `gorm:"column:registered_at" json:"registeredAt"`
	Revision     int64       `gorm:"column:revision" json:"revision"`
}

// ManualOwner is the owner of an entry that somebody registered by hand.
const ManualOwner = "manual"

// TableName is the table that holds entries.
func (Entry) TableName() string { return "entries" }

// Clone returns a copy that can be changed.
func (e *Entry) Clone() *Entry {
	c := *e
	c.Owners = slices.Clone(e.Owners)
	c.Annotations = e.Annotations.Clone()
	return &c
}

// ObjectID is an entry's id in the change log.
func (e *Entry) ObjectID() string { return "registration/" + e.Key }

// OwnEntryKey is the key of an own entry: what makes it one entry of the feed.
func OwnEntryKey(r *Registration) string {
	return strings.Join([]string{r.Cluster, r.Protocol, r.Service, r.Address, portText(r.Port)}, "/")
}

// ForeignEntryKey is the key of an entry that arrived on a subject.
func ForeignEntryKey(subject string) string { return "@" + subject }

func portText(port *int) string {
	if port == nil {
		return "-"
	}
	return strconv.Itoa(*port)
}

// CompareEntries orders entries by address as a number, IPv4 first, then by port and by
// the rest: no two are equal.
func CompareEntries(a, b *Entry) int {
	x, _ := netip.ParseAddr(a.Address)
	y, _ := netip.ParseAddr(b.Address)
	port := func(e *Entry) int {
		if e.Port == nil {
			return 0
		}
		return *e.Port
	}
	return cmp.Or(
		cmp.Compare(x.BitLen(), y.BitLen()), x.Compare(y), cmp.Compare(port(a), port(b)),
		cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Key, b.Key),
	)
}

// RegistrationFilter selects entries. An empty field, or *, is any.
type RegistrationFilter struct {
	Cluster  string `json:"cluster,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	Service  string `json:"service,omitempty"`
	Address  string `json:"address,omitempty"`
}

// Normalise refuses what no entry can match, and writes any as empty and the address in
// one spelling.
func (f *RegistrationFilter) Normalise() error {
	for field, value := range map[string]*string{"cluster": &f.Cluster, "protocol": &f.Protocol, "service": &f.Service} {
		if *value == "*" {
			*value = ""
		}
		if *value != "" {
			if err := CheckRegistrationName(field, *value); err != nil {
				return err
			}
		}
	}
	if f.Address == "*" {
		f.Address = ""
	}
	if f.Address != "" {
		addr, err := netip.ParseAddr(f.Address)
		if err != nil {
			return InvalidField("address", "%.80q is no IP address; leave it out for any", f.Address)
		}
		f.Address = addr.String()
	}
	return nil
}

// Matches reports whether a normalised filter selects an entry.
func (f *RegistrationFilter) Matches(r *Registration) bool {
	return (f.Cluster == "" || f.Cluster == r.Cluster) && (f.Protocol == "" || f.Protocol == r.Protocol) &&
		(f.Service == "" || f.Service == r.Service) && (f.Address == "" || f.Address == r.Address)
}

// Registrations are entries that were looked up.
type Registrations struct {
	Entries []*Entry
	// Complete says that what others wrote is known up to AsOf; otherwise the feed cannot
	// be reached, and it is what was known then.
	Complete bool
	AsOf     time.Time
	Revision int64
}

// RegisterInput is an entry that somebody registers by hand.
type RegisterInput struct {
	Cluster     string         `json:"cluster"`
	Protocol    string         `json:"protocol"`
	Service     string         `json:"service"`
	Address     string         `json:"address"`
	Port        *int           `json:"port,omitempty"`
	Priority    *int           `json:"priority,omitempty"` // nil: DefaultPriority
	Annotations Map            `json:"annotations,omitempty"`
	TTL         *time.Duration `json:"ttl,omitempty"`
}

// Validate refuses what no entry can have. The rest is for Registration.Validate.
func (in *RegisterInput) Validate() error { return checkPriority("priority", in.Priority) }

// Registration is the entry.
func (in *RegisterInput) Registration() Registration {
	r := Registration{
		Cluster: in.Cluster, Protocol: in.Protocol, Service: in.Service, Address: in.Address, Port: in.Port,
		Priority: DefaultPriority, Annotations: in.Annotations, TTL: in.TTL,
	}
	if in.Priority != nil {
		r.Priority = *in.Priority
	}
	return r
}

// DeregisterInput names an entry that was registered by hand.
type DeregisterInput struct {
	Cluster  string `json:"cluster"`
	Protocol string `json:"protocol"`
	Service  string `json:"service"`
	Address  string `json:"address"`
	Port     *int   `json:"port,omitempty"`
}

// FeedFinding is a difference between what this cluster should have in the discovery feed
// and what is there.
type FeedFinding struct {
	Subject string `json:"subject"`
	Damage  string `json:"damage"`
}

// DistinctEntries are those of a list in the order of CompareEntries that are not at the place of another one:
// where others write what is ours too, ours stays. It changes no entry and not the slice.
func DistinctEntries(sorted []*Entry) []*Entry {
	out := make([]*Entry, 0, len(sorted))
	for _, e := range sorted {
		last := len(out) - 1
		switch {
		case last < 0 || !samePlace(&out[last].Registration, &e.Registration):
			out = append(out, e)
		case e.Own:
			out[last] = e
		}
	}
	return out
}

func samePlace(a, b *Registration) bool {
	return a.Cluster == b.Cluster && a.Protocol == b.Protocol && a.Service == b.Service && a.Address == b.Address && portText(a.Port) == portText(b.Port)
}

// PreferredEntries are those of the best priority among the ones that are not stale; those
// of the best priority of all where every one is. It changes no entry and not the slice.
func PreferredEntries(entries []*Entry) []*Entry {
	sure := slices.DeleteFunc(slices.Clone(entries), func(e *Entry) bool { return e.Status == EntryStale })
	if len(sure) == 0 {
		sure = slices.Clone(entries)
	}
	if len(sure) == 0 {
		return sure
	}
	top := slices.MinFunc(sure, func(a, b *Entry) int { return cmp.Compare(a.Priority, b.Priority) }).Priority
	return slices.DeleteFunc(sure, func(e *Entry) bool { return e.Priority != top })
}
