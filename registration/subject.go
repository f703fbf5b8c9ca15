package registration

import (
	"fmt"
	"hash/fnv"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/muster-cloud/muster"
)

// Prefix begins each subject of the feed.
const Prefix = "choria.ccm.registration.v1"

// noPort is what is hashed in the port's place of an entry without one.
const noPort = "%!d(<nil>)"

// Key is what a subject says of its entry.
type Key struct {
	Cluster  string
	Protocol string
	Service  string
	Address  netip.Addr
	Instance string // 16 hexadecimal digits when muster or ccm wrote it; never relied on
}

// Subject returns the subject of an entry that is valid: two entries that differ only
// in priority, annotations or TTL have the same.
func Subject(r *muster.Registration) string {
	return strings.Join([]string{Prefix, r.Cluster, r.Protocol, r.Service, addressToken(r.Address), Instance(r)}, ".")
}

// Instance returns the last token of an entry's subject, which tells entries apart that
// differ only in their port.
func Instance(r *muster.Registration) string {
	port := noPort
	if r.Port != nil {
		port = strconv.Itoa(*r.Port)
	}
	h := fnv.New64a()
	for _, s := range []string{r.Cluster, r.Service, r.Protocol, r.Address, port} {
		_, _ = io.WriteString(h, s) // a hash takes all
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// Filter returns the pattern of the subjects of some entries; an empty or "*" part is any.
func Filter(cluster, protocol, service, address string) string {
	orAny := func(s string) string {
		if s == "" {
			return "*"
		}
		return s
	}
	return strings.Join([]string{Prefix, orAny(cluster), orAny(protocol), orAny(service), orAny(addressToken(address)), "*"}, ".")
}

// ParseSubject reads a subject that anybody may have written.
func ParseSubject(subject string) (Key, error) {
	tail, ok := strings.CutPrefix(subject, Prefix+".")
	tokens := strings.Split(tail, ".")
	if !ok || len(tokens) != 5 {
		return Key{}, fmt.Errorf("subject %.200q is not %s and five parts", subject, Prefix)
	}
	for _, name := range tokens[:3] {
		if !muster.IsRegistrationName(name) {
			return Key{}, fmt.Errorf("subject %.200q: %.80q is no name", subject, name)
		}
	}
	addr, err := netip.ParseAddr(strings.ReplaceAll(tokens[3], "_", "."))
	if err != nil || addr.Zone() != "" {
		return Key{}, fmt.Errorf("subject %.200q: %.80q is no IP address", subject, tokens[3])
	}
	return Key{Cluster: tokens[0], Protocol: tokens[1], Service: tokens[2], Address: addr, Instance: tokens[4]}, nil
}

// addressToken writes an address as one token.
func addressToken(address string) string { return strings.ReplaceAll(address, ".", "_") }
