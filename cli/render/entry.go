package render

import (
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// Entry is what a template sees of a registration.
type Entry struct {
	Cluster, Protocol, Service, Address string

	Port         int               // 0: none
	Priority     int               // 1 to 255, lower is preferred
	Annotations  map[string]string // whoever registered it wrote them: see word and oneLine
	TTL          string            // such as 5m0s, or never; empty: the feed's longest
	Own          bool              // this cluster publishes it
	Origin       string            // the uid of the cluster that does; empty: nobody said
	Owners       []string
	Stale        bool // its node fell silent while the brake holds: it may be gone
	RegisteredAt time.Time
}

// Host is the address, in brackets if it is IPv6.
func (e Entry) Host() string {
	if e.IPv6() {
		return "[" + e.Address + "]"
	}
	return e.Address
}

// HostPort is where it is reached: an IPv6 address is in brackets; without a port it is the
// address alone.
func (e Entry) HostPort() string {
	if e.Port == 0 {
		return e.Host()
	}
	return net.JoinHostPort(e.Address, strconv.Itoa(e.Port))
}

// IPv6 reports whether the address is of that kind.
func (e Entry) IPv6() bool {
	addr, err := netip.ParseAddr(e.Address)
	return err == nil && addr.Is6()
}

// shown returns what a template sees.
func shown(e *muster.Entry) Entry {
	out := Entry{
		Cluster: e.Cluster, Protocol: e.Protocol, Service: e.Service, Address: e.Address, Priority: e.Priority,
		Annotations: e.Annotations.Clone(), Own: e.Own, Origin: e.Origin, Owners: e.Owners,
		Stale: e.Status == muster.EntryStale, RegisteredAt: e.RegisteredAt,
	}
	if e.Port != nil {
		out.Port = *e.Port
	}
	if e.TTL != nil {
		out.TTL = muster.FormatRegistrationTTL(*e.TTL)
	}
	return out
}

// entryOf is an answer's entry in the words of the vocabulary.
func entryOf(e *client.Entry) *muster.Entry {
	out := &muster.Entry{
		Key: e.Key, Own: e.Own, Origin: e.Origin, Owners: e.Owners, Status: e.Status,
		RegisteredAt: e.RegisteredAt, Revision: e.Revision,
		Registration: muster.Registration{
			Cluster: e.Cluster, Protocol: e.Protocol, Service: e.Service, Address: e.Address, Port: e.Port, Priority: e.Priority,
		},
	}
	if e.Annotations != nil {
		out.Annotations = *e.Annotations
	}
	if ttl, err := muster.ParseRegistrationTTL("ttl", e.Ttl); err == nil {
		out.TTL = &ttl
	}
	return out
}
