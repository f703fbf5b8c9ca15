package registration

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/muster-cloud/muster"
)

// MaxEntryBytes is what an entry has at most as a message. Larger ones that others wrote are
// skipped: a reader holds every entry in memory.
const MaxEntryBytes = 256 << 10

// wire is an entry as JSON; the order of the fields is part of the format.
type wire struct {
	Cluster     string            `json:"cluster"`
	Service     string            `json:"service"`
	Protocol    string            `json:"protocol"`
	Address     string            `json:"address"`
	Port        *int              `json:"port"`
	Priority    *int              `json:"priority"`
	Annotations map[string]string `json:"annotations,omitempty"`
	TTL         wireTTL           `json:"ttl,omitzero"`
}

// Encode writes a valid entry as a message.
func Encode(r *muster.Registration) ([]byte, error) {
	return json.Marshal(wire{
		Cluster: r.Cluster, Service: r.Service, Protocol: r.Protocol,
		Address: r.Address, Port: r.Port, Priority: &r.Priority,
		Annotations: r.Annotations, TTL: wireTTL{r.TTL},
	})
}

// Decode reads a message that anybody may have written. Unknown keys, an absent port or
// priority, and a TTL in nanoseconds are taken; the address is put into one spelling. What
// breaks a rule of the format, or is not what its subject says, is an error that names the field.
func Decode(subject string, data []byte) (*muster.Registration, error) {
	key, err := ParseSubject(subject)
	if err != nil {
		return nil, err
	}
	if len(data) > MaxEntryBytes {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read", len(data), MaxEntryBytes)
	}
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, fmt.Errorf("it is no entry: %w", err)
	}
	if err := w.check(key); err != nil {
		return nil, err
	}
	r := &muster.Registration{
		Cluster: w.Cluster, Protocol: w.Protocol, Service: w.Service, Address: key.Address.String(),
		Port: w.Port, Priority: muster.DefaultPriority, Annotations: w.Annotations, TTL: w.TTL.Duration,
	}
	if w.Priority != nil {
		r.Priority = *w.Priority
	}
	return r, nil
}

// check refuses what the format does not allow. Names are those of the subject, which
// was checked.
func (w *wire) check(key Key) error {
	addr, err := netip.ParseAddr(w.Address)
	switch {
	case w.Cluster != key.Cluster:
		return fmt.Errorf("cluster: %.80q is not that of its subject, %.80q", w.Cluster, key.Cluster)
	case w.Protocol != key.Protocol:
		return fmt.Errorf("protocol: %.80q is not that of its subject, %.80q", w.Protocol, key.Protocol)
	case w.Service != key.Service:
		return fmt.Errorf("service: %.80q is not that of its subject, %.80q", w.Service, key.Service)
	case err != nil || addr != key.Address:
		return fmt.Errorf("address: %.80q is not that of its subject, %s", w.Address, key.Address)
	case w.Port != nil && (*w.Port < 1 || *w.Port > 65535):
		return fmt.Errorf("port: %d is not between 1 and 65535", *w.Port)
	case w.Priority != nil && (*w.Priority < 1 || *w.Priority > muster.MaxPriority):
		return fmt.Errorf("priority: %d is not between 1 and %d", *w.Priority, muster.MaxPriority)
	}
	for k, v := range w.Annotations {
		if k == "" || strings.ContainsRune(k, 0) || strings.ContainsRune(v, 0) {
			return fmt.Errorf("annotations: %.80q is empty or has a NUL", k)
		}
	}
	return nil
}
