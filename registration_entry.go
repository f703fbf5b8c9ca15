package muster

import (
	"cmp"
	"math"
	"net/netip"
	"strings"
	"time"
)

// MaxAnnotationBytes is what keys and values of an entry's annotations have at most in
// all, so that an entry fits into a message of the feed however it is escaped.
const MaxAnnotationBytes = 32 << 10

// Registration is an entry of the discovery feed: where a service is reached.
type Registration struct {
	Cluster     string `gorm:"column:cluster" json:"cluster"`
	Protocol    string `gorm:"column:protocol" json:"protocol"`
	Service     string `gorm:"column:service" json:"service"`
	Address     string `gorm:"column:address" json:"address"`   // an IP, in one spelling
	Port        *int   `gorm:"column:port" json:"port"`         // nil: none
	Priority    int    `gorm:"column:priority" json:"priority"` // 1 to 255, lower is preferred
	Annotations Map    `gorm:"column:annotations;serializer:json" json:"annotations"`
	// TTL is after what it expires unless it is refreshed; nil: the feed's longest;
	// RegistrationTTLForever: never.
	TTL *time.Duration `gorm:"column:ttl" json:"ttl"`
}

// Validate refuses an entry that the feed cannot carry, naming the field, and writes
// its address in one spelling and a priority of 0 as DefaultPriority.
func (r *Registration) Validate() error {
	if r.Priority == 0 {
		r.Priority = DefaultPriority
	}
	addr, err := netip.ParseAddr(r.Address)
	switch {
	case err != nil || addr.Zone() != "":
		return InvalidField("address", "%.80q is no IP address; give one such as 10.0.0.5 or 2001:db8::5", r.Address)
	case r.Port != nil && (*r.Port < 1 || *r.Port > 65535):
		return InvalidField("port", "%d is not between 1 and 65535", *r.Port)
	case r.Priority < 1 || r.Priority > MaxPriority:
		return InvalidField("priority", "%d is not between 1 and %d", r.Priority, MaxPriority)
	}
	r.Address = addr.String()
	return first(
		CheckRegistrationName("cluster", r.Cluster),
		CheckRegistrationName("protocol", r.Protocol),
		CheckRegistrationName("service", r.Service),
		checkTTL("ttl", r.TTL),
		CheckAnnotations("annotations", r.Annotations),
	)
}

// IsRegistrationName reports whether the feed can carry s as a cluster, protocol or
// service, however long.
func IsRegistrationName(s string) bool { return registrationName.MatchString(s) }

// CheckAnnotations refuses what CheckMap refuses, and more than MaxAnnotationBytes in all.
func CheckAnnotations(field string, m Map) error {
	if err := CheckMap(field, m); err != nil {
		return err
	}
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
	}
	if size > MaxAnnotationBytes {
		return InvalidField(field, "they have %d bytes, at most %d are allowed", size, MaxAnnotationBytes)
	}
	return nil
}

func checkTTL(field string, ttl *time.Duration) error {
	if ttl == nil || *ttl == RegistrationTTLForever {
		return nil
	}
	if *ttl < MinRegistrationTTL || *ttl%time.Second != 0 {
		return InvalidField(field, "%s is not a whole number of seconds, at least one; give a span such as 30s or 1d12h, or never", *ttl)
	}
	return nil
}

// ttlHours tells how many hours a unit beside Go's own has; 0: it is none.
func ttlHours(unit string) int64 {
	switch unit {
	case "d":
		return 24
	case "w":
		return 7 * 24
	case "M":
		return 30 * 24
	case "y":
		return 365 * 24
	}
	return 0
}

// ParseRegistrationTTL reads a TTL as a person writes it: `never`, or a span in Go's units, in d (24
// hours), w (7 days), M (30 days) and y (365 days), one after the other. It is a
// whole number of seconds, at least one; what has anything else in it is refused.
func ParseRegistrationTTL(field, text string) (time.Duration, error) {
	ttl, ok := parseTTL(text)
	if !ok {
		return 0, InvalidField(field, "%.80q is no time to live; write never, or a span such as 30s, 5m, 1d12h, 2w", text)
	}
	if err := checkTTL(field, &ttl); err != nil {
		return 0, err
	}
	return ttl, nil
}

// parseTTL reads the grammar alone.
func parseTTL(text string) (time.Duration, bool) {
	if text == "never" {
		return RegistrationTTLForever, true
	}
	var sum time.Duration
	for rest := text; rest != ""; {
		digits := strings.IndexFunc(rest, func(c rune) bool { return c != '.' && (c < '0' || c > '9') })
		if digits <= 0 {
			return 0, false
		}
		end := strings.IndexAny(rest[digits:], ".0123456789")
		if end < 0 {
			end = len(rest) - digits
		}
		part, ok := ttlPart(rest[:digits], rest[digits:digits+end])
		if !ok || sum > math.MaxInt64-part {
			return 0, false
		}
		sum += part
		rest = rest[digits+end:]
	}
	return sum, text != ""
}

func ttlPart(number, unit string) (time.Duration, bool) {
	hours := ttlHours(unit)
	if hours == 0 {
		d, err := time.ParseDuration(number + unit)
		return d, err == nil
	}
	d, err := time.ParseDuration(number + "h")
	if err != nil || d > math.MaxInt64/time.Duration(hours) {
		return 0, false
	}
	return d * time.Duration(hours), true
}

// FormatRegistrationTTL writes a TTL as the feed does: `never`, or Go's text.
func FormatRegistrationTTL(ttl time.Duration) string {
	if ttl == RegistrationTTLForever {
		return "never"
	}
	return ttl.String()
}

// CompareRegistrations orders entries by address as numbers, IPv4 first, then by port, none
// first, and then by the rest, so that the order is always the same.
func CompareRegistrations(a, b *Registration) int {
	one, _ := netip.ParseAddr(a.Address) // what is none comes first
	two, _ := netip.ParseAddr(b.Address)
	return cmp.Or(
		one.Compare(two), cmp.Compare(a.Address, b.Address), cmp.Compare(portNumber(a.Port), portNumber(b.Port)),
		cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Priority, b.Priority),
	)
}

func portNumber(port *int) int {
	if port == nil {
		return 0
	}
	return *port
}
