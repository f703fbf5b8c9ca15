package registration_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

func ptr[T any](v T) *T { return &v }

// vector is an entry as ccm writes it.
type vector struct {
	name    string
	entry   muster.Registration
	subject string // without the prefix
	payload string
}

func vectors() []vector {
	entry := func(name, address string, port, priority int, ttl time.Duration) muster.Registration {
		parts := strings.Split(name, "/")
		r := muster.Registration{Cluster: parts[0], Service: parts[1], Protocol: parts[2], Address: address, Priority: priority}
		if port != 0 {
			r.Port = &port
		}
		if ttl != 0 {
			r.TTL = &ttl
		}
		return r
	}
	annotated := entry("production/web/http", "10.0.0.5", 8080, 10, 0)
	annotated.Annotations = muster.Map{"version": "1.2.3", "html": "<a&b>"}
	return []vector{
		{
			"IPv4", entry("production/web/http", "10.0.0.5", 8080, 10, 5*time.Minute),
			"production.http.web.10_0_0_5.d097567f5aa3133c",
			`{"cluster":"production","service":"web","protocol":"http","address":"10.0.0.5","port":8080,"priority":10,"ttl":"5m0s"}`,
		},
		{
			"IPv6", entry("production/web/http", "2001:db8::5", 8080, 100, 90*time.Second),
			"production.http.web.2001:db8::5.87752a84dbda8508",
			`{"cluster":"production","service":"web","protocol":"http","address":"2001:db8::5","port":8080,"priority":100,"ttl":"1m30s"}`,
		},
		{
			"no ttl", entry("production/db/tcp", "10.0.0.6", 5432, 100, 0),
			"production.tcp.db.10_0_0_6.79294fce16012986",
			`{"cluster":"production","service":"db","protocol":"tcp","address":"10.0.0.6","port":5432,"priority":100}`,
		},
		{
			"never", entry("production/db/tcp", "10.0.0.7", 5432, 100, muster.RegistrationTTLForever),
			"production.tcp.db.10_0_0_7.74ba37af85873aad",
			`{"cluster":"production","service":"db","protocol":"tcp","address":"10.0.0.7","port":5432,"priority":100,"ttl":"never"}`,
		},
		{
			"IPv4 in IPv6", entry("production/db/tcp", "::ffff:10.0.0.7", 5432, 100, 24*time.Hour),
			"production.tcp.db.::ffff:10_0_0_7.4849ab9a3762811d",
			`{"cluster":"production","service":"db","protocol":"tcp","address":"::ffff:10.0.0.7","port":5432,"priority":100,"ttl":"24h0m0s"}`,
		},
		{
			"annotations", annotated,
			"production.http.web.10_0_0_5.d097567f5aa3133c",
			`{"cluster":"production","service":"web","protocol":"http","address":"10.0.0.5","port":8080,"priority":10,"annotations":{"html":"\u003ca\u0026b\u003e","version":"1.2.3"}}`,
		},
		{
			"no port", entry("production/noport/icmp", "10.0.0.7", 0, 255, 0),
			"production.icmp.noport.10_0_0_7.e85c7d10d1890e75",
			`{"cluster":"production","service":"noport","protocol":"icmp","address":"10.0.0.7","port":null,"priority":255}`,
		},
	}
}

func TestEntry_IsWrittenAndReadAsCCMDoes(t *testing.T) {
	for _, v := range vectors() {
		t.Run(v.name, func(t *testing.T) {
			if err := v.entry.Validate(); err != nil {
				t.Fatal(err)
			}
			subject := registration.Prefix + "." + v.subject
			if got := registration.Subject(&v.entry); got != subject {
				t.Errorf("subject\n got %s\nwant %s", got, subject)
			}
			payload, err := registration.Encode(&v.entry)
			if err != nil || string(payload) != v.payload {
				t.Errorf("payload\n got %s, %v\nwant %s", payload, err, v.payload)
			}
			back, err := registration.Decode(subject, []byte(v.payload))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&v.entry, back); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestInstance_Vectors(t *testing.T) {
	for _, c := range []struct {
		cluster, service, protocol, address string
		port                                int
		want                                string
	}{
		{"production", "web", "http", "10.0.0.5", 8080, "d097567f5aa3133c"},
		{"prod", "web", "tcp", "10.0.0.1", 8080, "37fd7630379a59f9"},
		{"c1", "web", "http", "10.0.0.1", 80, "0c67abd8d6ace1c5"},
		{"c1", "web", "http", "2001:db8::9", 80, "36ca44878fb37667"},
		{"production", "web", "http", "10.0.0.10", 65535, "740de87df9508a54"},
	} {
		r := &muster.Registration{Cluster: c.cluster, Service: c.service, Protocol: c.protocol, Address: c.address, Port: &c.port}
		if got := registration.Instance(r); got != c.want {
			t.Errorf("%s: got %s, want %s", c.cluster+c.service+c.protocol+c.address, got, c.want)
		}
	}
}

func TestDecode_TakesWhatOthersWrite(t *testing.T) {
	const subject = registration.Prefix + ".c.http.web.2001:db8::5.0"
	base := muster.Registration{Cluster: "c", Protocol: "http", Service: "web", Address: "2001:db8::5", Priority: 100}
	for _, c := range []struct {
		name, rest string
		want       func(*muster.Registration)
	}{
		{"no port, no priority", ``, func(*muster.Registration) {}},
		{"unknown keys", `,"weight":{"a":[1]}`, func(*muster.Registration) {}},
		{"another spelling of the address", `,"address":"2001:0DB8:0::5"`, func(*muster.Registration) {}},
		{"ttl in nanoseconds", `,"ttl":90000000000`, func(r *muster.Registration) { r.TTL = ptr(90 * time.Second) }},
		{"ttl in nanoseconds, as a float", `,"ttl":9e10`, func(r *muster.Registration) { r.TTL = ptr(90 * time.Second) }},
		{"ttl null", `,"ttl":null`, func(*muster.Registration) {}},
		{"ttl zero", `,"ttl":0`, func(*muster.Registration) {}},
		{"ttl below zero", `,"ttl":-1`, func(*muster.Registration) {}},
		{"ttl empty", `,"ttl":""`, func(*muster.Registration) {}},
		{"ttl in days", `,"ttl":"1d"`, func(r *muster.Registration) { r.TTL = ptr(24 * time.Hour) }},
		{"ttl with a fraction", `,"ttl":"1.5s"`, func(r *muster.Registration) { r.TTL = ptr(1500 * time.Millisecond) }},
		{"annotations with controls", `,"annotations":{"a":"x\ny"}`, func(r *muster.Registration) { r.Annotations = muster.Map{"a": "x\ny"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := base
			c.want(&want)
			got, err := registration.Decode(subject, []byte(`{"cluster":"c","service":"web","protocol":"http","address":"2001:db8::5"`+c.rest+`}`))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecode_NamesWhatItRefuses(t *testing.T) {
	const good = `"cluster":"c","service":"web","protocol":"http","address":"10.0.0.5"`
	for _, c := range []struct{ name, tail, payload, want string }{
		{"nothing", "c.http.web.10_0_0_5.0", ``, "no entry"},
		{"no JSON", "c.http.web.10_0_0_5.0", `{`, "no entry"},
		{"a list", "c.http.web.10_0_0_5.0", `[]`, "no entry"},
		{"another cluster", "d.http.web.10_0_0_5.0", `{` + good + `}`, "cluster"},
		{"another service", "c.http.db.10_0_0_5.0", `{` + good + `}`, "service"},
		{"another protocol", "c.tcp.web.10_0_0_5.0", `{` + good + `}`, "protocol"},
		{"another address", "c.http.web.10_0_0_6.0", `{` + good + `}`, "address"},
		{"address with leading zeros", "c.http.web.10_0_0_5.0", `{` + good + `,"address":"10.0.0.05"}`, "address"},
		{"port 0", "c.http.web.10_0_0_5.0", `{` + good + `,"port":0}`, "port"},
		{"port 65536", "c.http.web.10_0_0_5.0", `{` + good + `,"port":65536}`, "port"},
		{"port as text", "c.http.web.10_0_0_5.0", `{` + good + `,"port":"80"}`, "port"},
		{"priority 256", "c.http.web.10_0_0_5.0", `{` + good + `,"priority":256}`, "priority"},
		{"priority 0", "c.http.web.10_0_0_5.0", `{` + good + `,"priority":0}`, "priority"},
		{"ttl with garbage", "c.http.web.10_0_0_5.0", `{` + good + `,"ttl":"5s garbage"}`, "ttl"},
		{"ttl as an object", "c.http.web.10_0_0_5.0", `{` + good + `,"ttl":{}}`, "ttl"},
		{"ttl beyond time", "c.http.web.10_0_0_5.0", `{` + good + `,"ttl":1e300}`, "ttl"},
		{"a NUL in an annotation", "c.http.web.10_0_0_5.0", `{` + good + `,"annotations":{"a":"\u0000"}}`, "annotations"},
		{"a number as an annotation", "c.http.web.10_0_0_5.0", `{` + good + `,"annotations":{"a":1}}`, "annotations"},
		{"too large", "c.http.web.10_0_0_5.0", `{` + good + `,"x":"` + strings.Repeat("x", registration.MaxEntryBytes) + `"}`, "bytes"},
		{"subject with a token too few", "c.http.web.10_0_0_5", `{` + good + `}`, "five parts"},
		{"subject with a token too many", "c.http.web.10_0_0_5.0.0", `{` + good + `}`, "five parts"},
		{"subject with a name that is none", "1c.http.web.10_0_0_5.0", `{` + good + `}`, "no name"},
		{"subject without an address", "c.http.web.localhost.0", `{` + good + `}`, "no IP address"},
		{"subject with a zone", "c.http.web.fe80::1%eth0.0", `{` + good + `}`, "no IP address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := registration.Decode(registration.Prefix+"."+c.tail, []byte(c.payload))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want something about %q", err, c.want)
			}
			if err != nil && len(err.Error()) > 500 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestFilter(t *testing.T) {
	for _, c := range []struct{ cluster, protocol, service, address, want string }{
		{"", "", "", "", "*.*.*.*.*"},
		{"*", "*", "*", "*", "*.*.*.*.*"},
		{"c", "http", "web", "10.0.0.5", "c.http.web.10_0_0_5.*"},
	} {
		if got := registration.Filter(c.cluster, c.protocol, c.service, c.address); got != registration.Prefix+"."+c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func FuzzSubject_RoundTrip(f *testing.F) {
	for _, v := range vectors() {
		port := 0
		if v.entry.Port != nil {
			port = *v.entry.Port
		}
		f.Add(v.entry.Cluster, v.entry.Protocol, v.entry.Service, v.entry.Address, port)
	}
	f.Fuzz(func(t *testing.T, cluster, protocol, service, address string, port int) {
		r := &muster.Registration{Cluster: cluster, Protocol: protocol, Service: service, Address: address}
		if port != 0 {
			r.Port = &port
		}
		if r.Validate() != nil {
			return
		}
		key, err := registration.ParseSubject(registration.Subject(r))
		if err != nil {
			t.Fatal(err)
		}
		want := registration.Key{Cluster: cluster, Protocol: protocol, Service: service, Address: netip.MustParseAddr(address), Instance: registration.Instance(r)}
		if key != want {
			t.Errorf("got %+v, want %+v", key, want)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, v := range vectors() {
		f.Add(registration.Prefix+"."+v.subject, v.payload)
	}
	f.Add(registration.Prefix+".c.http.web.::5.0", `{"cluster":"c","service":"web","protocol":"http","address":"::5","ttl":9e9,"annotations":null}`)
	f.Fuzz(func(t *testing.T, subject, payload string) {
		r, err := registration.Decode(subject, []byte(payload))
		if err != nil {
			return
		}
		// What was taken is written so that it is taken again, and is the same.
		again, err := registration.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		back, err := registration.Decode(registration.Subject(r), again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if len(r.Annotations) == 0 {
			r.Annotations = nil
		}
		if diff := cmp.Diff(r, back); diff != "" {
			t.Error(diff)
		}
	})
}
