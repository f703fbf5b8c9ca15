package muster_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
)

func TestRegistration_Validate(t *testing.T) {
	valid := func() *muster.Registration {
		return &muster.Registration{Cluster: "c", Protocol: "http", Service: "web", Address: "10.0.0.5"}
	}
	r := valid()
	r.Address = "2001:DB8:0::5"
	if err := r.Validate(); err != nil || r.Address != "2001:db8::5" || r.Priority != muster.DefaultPriority {
		t.Errorf("got %v, %+v", err, r)
	}
	zero, many, below := 0, 65536, -time.Second
	fraction := 1500 * time.Millisecond
	for _, c := range []struct {
		field string
		spoil func(*muster.Registration)
	}{
		{"cluster", func(r *muster.Registration) { r.Cluster = "" }},
		{"cluster", func(r *muster.Registration) { r.Cluster = "a.b" }},
		{"protocol", func(r *muster.Registration) { r.Protocol = "1http" }},
		{"service", func(r *muster.Registration) { r.Service = "web*" }},
		{"service", func(r *muster.Registration) { r.Service = strings.Repeat("x", 64) }},
		{"address", func(r *muster.Registration) { r.Address = "" }},
		{"address", func(r *muster.Registration) { r.Address = "localhost" }},
		{"address", func(r *muster.Registration) { r.Address = "010.0.0.5" }},
		{"address", func(r *muster.Registration) { r.Address = "[::1]" }},
		{"address", func(r *muster.Registration) { r.Address = "fe80::1%eth0" }},
		{"address", func(r *muster.Registration) { r.Address = "10.0.0.0/8" }},
		{"port", func(r *muster.Registration) { r.Port = &zero }},
		{"port", func(r *muster.Registration) { r.Port = &many }},
		{"priority", func(r *muster.Registration) { r.Priority = -1 }},
		{"priority", func(r *muster.Registration) { r.Priority = 256 }},
		{"ttl", func(r *muster.Registration) { r.TTL = new(time.Duration) }},
		{"ttl", func(r *muster.Registration) { r.TTL = &below }},
		{"ttl", func(r *muster.Registration) { r.TTL = &fraction }},
		{"annotations", func(r *muster.Registration) { r.Annotations = muster.Map{"": "x"} }},
		{"annotations.a", func(r *muster.Registration) { r.Annotations = muster.Map{"a": "\x00"} }},
		{"annotations", func(r *muster.Registration) {
			r.Annotations = muster.Map{}
			for _, k := range strings.Split("abcdefghi", "") {
				r.Annotations[k] = strings.Repeat("x", muster.MaxMapValueBytes)
			}
		}},
	} {
		r := valid()
		c.spoil(r)
		if e, ok := errors.AsType[*muster.Error](r.Validate()); !ok || e.Code != muster.Invalid || e.Field != c.field {
			t.Errorf("%+v: got %v, want something about %s", r, e, c.field)
		}
	}
}

// Where others write what is ours too, ours alone is at that place.
func TestDistinctEntries(t *testing.T) {
	at := func(key, address string, port int, own bool) *muster.Entry {
		r := muster.Registration{Cluster: "prod", Protocol: "http", Service: "web", Address: address}
		if port != 0 {
			r.Port = &port
		}
		return &muster.Entry{Key: key, Registration: r, Own: own}
	}
	a, twin := at("a", "10.0.0.1", 80, true), at("@a", "10.0.0.1", 80, false)
	others := []*muster.Entry{at("b", "10.0.0.1", 81, false), at("c", "10.0.0.1", 0, false), at("d", "10.0.0.2", 80, true)}
	for _, list := range [][]*muster.Entry{append([]*muster.Entry{twin, a}, others...), append([]*muster.Entry{a, twin}, others...)} {
		first := list[0]
		if got := muster.DistinctEntries(list); !slices.Equal(got, append([]*muster.Entry{a}, others...)) || list[0] != first {
			t.Errorf("got %v of %v", got, list)
		}
	}
	if got := muster.DistinctEntries(nil); got == nil || len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// A priority that is given is one; without one it is the default.
func TestRegister_PriorityIsOne(t *testing.T) {
	for p, valid := range map[int]bool{1: true, 255: true, 0: false, -1: false, 256: false} {
		in := muster.RegisterInput{Priority: &p}
		spec := muster.RegistrationSpec{Cluster: "prod", Protocol: "http", Priority: &p}
		for field, err := range map[string]error{"priority": in.Validate(), "entry.priority": spec.Validate("entry")} {
			if (err == nil) != valid || err != nil && !strings.HasPrefix(err.Error(), field+": ") {
				t.Errorf("%d: %v", p, err)
			}
		}
	}
	in, spec := muster.RegisterInput{}, muster.RegistrationSpec{Cluster: "prod", Protocol: "http"}
	if err := errors.Join(in.Validate(), spec.Validate("entry")); err != nil || in.Registration().Priority != muster.DefaultPriority {
		t.Errorf("%v: %+v, %+v", err, in.Registration(), spec)
	}
}
