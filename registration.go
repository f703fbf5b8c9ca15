package muster

import (
	"net/netip"
	"regexp"
	"slices"
	"time"
)

// The limits and defaults of registrations.
const (
	MaxRegistrations       = 8 // of a service
	DefaultPriority        = 100
	MaxPriority            = 255
	MaxAnnotations         = 64
	MinRegistrationTTL     = time.Second
	RegistrationTTLForever = time.Duration(-1)
)

// registrationName is what the feed takes for a cluster, service or protocol.
var registrationName = regexp.MustCompile(`^[a-zA-Z][a-zA-Z\d_-]*$`)

// CheckRegistrationName refuses what the discovery feed cannot carry as a name: it
// begins with a letter and has letters, digits, hyphens and underscores.
func CheckRegistrationName(field, s string) error {
	if len(s) > MaxNameBytes || !registrationName.MatchString(s) {
		return InvalidField(field, "%.80q is no name for the discovery feed; begin with a letter, and use letters, digits, hyphens and underscores, at most %d", s, MaxNameBytes)
	}
	return nil
}

// checkPriority refuses a priority that is given and is none.
func checkPriority(field string, p *int) error {
	if p != nil && (*p < 1 || *p > MaxPriority) {
		return InvalidField(field, "%d is not between 1 and %d", *p, MaxPriority)
	}
	return nil
}

// RegistrationSpec is an entry that a service has in the discovery feed while it is
// stable.
type RegistrationSpec struct {
	Cluster     string `json:"cluster"`
	Protocol    string `json:"protocol"`
	Service     string `json:"service,omitempty"`  // empty: the service's name
	Address     string `json:"address,omitempty"`  // an IP or a template of one; empty: that of the node, or of the instance where those are routed
	Port        *int   `json:"port,omitempty"`     // nil: that which the service is published at, else its own
	Priority    *int   `json:"priority,omitempty"` // 1 to 255, lower is preferred; nil: DefaultPriority
	Annotations Map    `json:"annotations,omitempty"`
	// TTL is after what the entry expires unless it is refreshed; nil: the feed's
	// longest; RegistrationTTLForever: never.
	TTL *time.Duration `json:"ttl,omitempty"`
}

// Validate refuses an entry that the feed cannot carry, and names its field below prefix.
func (r *RegistrationSpec) Validate(prefix string) error {
	if r.Service != "" {
		if err := CheckRegistrationName(prefix+".service", r.Service); err != nil {
			return err
		}
	}
	if isTemplate(r.Address) {
		if err := checkTemplate(prefix+".address", r.Address); err != nil {
			return err
		}
	} else if r.Address != "" {
		if addr, err := netip.ParseAddr(r.Address); err != nil || addr.Zone() != "" {
			return InvalidField(prefix+".address", "%.80q is no IP address; leave it out for the node's", r.Address)
		}
	}
	switch {
	case r.Port != nil && (*r.Port < 1 || *r.Port > 65535):
		return InvalidField(prefix+".port", "%d is not between 1 and 65535", *r.Port)
	case r.TTL != nil && *r.TTL != RegistrationTTLForever && (*r.TTL < MinRegistrationTTL || *r.TTL%time.Second != 0):
		return InvalidField(prefix+".ttl", "%s is not a whole number of seconds, at least one", *r.TTL)
	}
	if err := first(checkPriority(prefix+".priority", r.Priority), CheckAnnotations(prefix+".annotations", r.Annotations)); err != nil {
		return err
	}
	for name, value := range r.Annotations {
		if err := checkTemplate(prefix+".annotations."+name, value); err != nil {
			return err
		}
	}
	return first(
		CheckRegistrationName(prefix+".cluster", r.Cluster),
		CheckRegistrationName(prefix+".protocol", r.Protocol),
	)
}

func checkRegistrations(specs []RegistrationSpec) error {
	if len(specs) > MaxRegistrations {
		return InvalidField("registerWhenStable", "there are %d entries, at most %d are allowed", len(specs), MaxRegistrations)
	}
	for i := range specs {
		if err := specs[i].Validate("registerWhenStable"); err != nil {
			return err
		}
		same := func(o RegistrationSpec) bool {
			return o.Cluster == specs[i].Cluster && o.Protocol == specs[i].Protocol && o.Service == specs[i].Service && o.Address == specs[i].Address
		}
		if slices.ContainsFunc(specs[:i], same) {
			return InvalidField("registerWhenStable", "two entries are for the same cluster, protocol, service and address; leave one out")
		}
	}
	return nil
}
