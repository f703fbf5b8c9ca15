package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/client/operations"
	"github.com/muster-cloud/muster/registration"
)

// fed is a server with entries of its own and of others in a feed that can be damaged.
type fed struct {
	*server
	feed *natsd
	in   *reader
	api  *client.Client
	own  string // the uid of the cluster
	next int
}

func newFed(t *testing.T, s *server, n *natsd) *fed {
	t.Helper()
	s.start()
	f := &fed{server: s, feed: n, api: s.client()}
	info, err := f.api.ServerInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.own, f.in = info.ClusterUID, n.reader()
	f.mutate()
	f.settle("it began")
	for k := range 3 {
		f.in.publish("another-cluster", entryAt(fmt.Sprint("198.51.100.", k)))
	}
	f.settle("others wrote")
	if found := f.entries(); found[false] != 3 {
		t.Fatalf("there are %d entries of others, want 3", found[false])
	}
	return f
}

func entryAt(address string) muster.Registration {
	return muster.Registration{Cluster: "prod", Protocol: "http", Service: "web", Address: address, Port: new(80), Priority: 100}
}

// mutate registers some entries and takes some out again.
func (f *fed) mutate() {
	f.t.Helper()
	var last muster.RegisterInput
	for k := range 10 {
		f.next++
		last = muster.RegisterInput{Cluster: "prod", Protocol: "http", Service: "web", Address: fmt.Sprint("192.0.2.", f.next), Port: new(80), Priority: new(1 + k)}
		if k%3 == 1 {
			last.TTL = new(time.Hour)
		}
		if k%3 == 2 {
			last.TTL = new(muster.RegistrationTTLForever)
		}
		if _, err := f.api.Register(f.t.Context(), last); err != nil {
			f.t.Fatal(err)
		}
	}
	_, err := f.api.Deregister(f.t.Context(), muster.DeregisterInput{Cluster: last.Cluster, Protocol: last.Protocol, Service: last.Service, Address: last.Address, Port: last.Port})
	if err != nil {
		f.t.Fatal(err)
	}
}

// entries counts those that are looked up, own and others'.
func (f *fed) entries() map[bool]int {
	f.t.Helper()
	found, err := f.api.Registrations(f.t.Context(), muster.RegistrationFilter{}, false)
	if err != nil {
		f.t.Fatal(err)
	}
	count := map[bool]int{}
	for _, e := range found.Entries {
		count[e.Own]++
	}
	return count
}

// settle waits until what is looked up is what the stream holds, and the server itself finds nothing that differs.
func (f *fed) settle(after string) {
	f.t.Helper()
	var differs string
	defer func() {
		if differs != "" {
			f.t.Logf("after %s: %s", after, differs)
		}
	}()
	until(f.t, "the feed is as it should be after "+after, func() bool {
		if differs = f.in.differs(f.api, f.own); differs != "" {
			return false
		}
		findings, err := f.api.VerifyFeed(f.t.Context(), false)
		if err != nil || len(findings) > 0 {
			differs = fmt.Sprint(findings, err)
		}
		return differs == ""
	})
}

func (f *fed) unreachable() bool {
	h, err := f.api.ClusterHealth(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return slices.ContainsFunc(h.Conditions, func(c operations.Condition) bool { return c.Name == muster.FeedUnreachable })
}

// TestFeed_NATSElsewhere has the server publish to a NATS server that is killed, wiped and damaged.
func TestFeed_NATSElsewhere(t *testing.T) {
	t.Parallel()
	n := newNATS(t)
	n.start()
	f := newFed(t, newServer(t, "--nats-url", n.url()), n)
	for _, round := range []struct {
		what   string
		wipe   bool
		others int // entries of others that are left
	}{{"a kill", false, 3}, {"a kill and the loss of its disk", true, 0}} {
		n.kill()
		before := f.entries()
		until(t, "a condition says that the feed cannot be reached", f.unreachable)
		f.mutate()
		after := f.entries()
		if after[true] != before[true]+9 || after[false] != before[false] {
			t.Errorf("during %s there were %v entries, and then %v", round.what, before, after)
		}
		if round.wipe {
			n.wipe()
		}
		n.start()
		f.settle(round.what)
		if found := f.entries(); found[true] != after[true] || found[false] != round.others {
			t.Errorf("after %s there are %v entries, want %d of ours and %d of others", round.what, found, after[true], round.others)
		}
		if f.unreachable() {
			t.Errorf("after %s the condition stays", round.what)
		}
	}
	f.in.publish("another-cluster", entryAt("198.51.100.9"))
	f.settle("others wrote again")
	if err := f.in.js.DeleteStream(t.Context(), registration.DefaultStream); err != nil {
		t.Fatal(err)
	}
	f.mutate()
	f.settle("the stream was deleted")
	f.damage()
}

// damage plants each kind of damage: the doctor finds it, and puts it right.
func (f *fed) damage() {
	f.t.Helper()
	mine := muster.Registration{Cluster: "prod", Protocol: "http", Service: "db", Address: "192.0.2.250", Port: new(5432), Priority: 7, TTL: new(time.Hour)}
	in := muster.RegisterInput{
		Cluster: mine.Cluster, Protocol: mine.Protocol, Service: mine.Service, Address: mine.Address, Port: mine.Port, Priority: &mine.Priority, TTL: mine.TTL,
	}
	if _, err := f.api.Register(f.t.Context(), in); err != nil {
		f.t.Fatal(err)
	}
	f.settle("the entry to be damaged was registered")
	subject := registration.Subject(&mine)
	other := mine
	other.Priority = 8
	stray := entryAt("192.0.2.251")
	well, err := registration.Encode(&mine)
	if err != nil {
		f.t.Fatal(err)
	}
	ours := map[string]string{"Muster-Origin": f.own, "Nats-TTL": "1h"}
	for damage, plant := range map[registration.Damage]struct {
		subject string
		it      func()
	}{
		registration.Stray: {registration.Subject(&stray), func() { f.in.publish(f.own, stray) }},
		registration.Missing: {subject, func() {
			if err := f.in.purge(subject); err != nil {
				f.t.Fatal(err)
			}
		}},
		registration.Different: {subject, func() { f.in.publish(f.own, other) }},
		registration.Foreign:   {subject, func() { f.in.publish("another-cluster", mine) }},
		registration.WrongTTL:  {subject, func() { f.in.send(subject, string(well), map[string]string{"Muster-Origin": f.own, "Nats-TTL": "2h"}) }},
		registration.Malformed: {registration.Prefix + ".prod.http.web.!", func() { f.in.send(registration.Prefix+".prod.http.web.!", "{", ours) }},
	} {
		plant.it()
		if found := f.doctor(); len(found) != 1 || found[0].Damage != string(damage) || found[0].Subject != plant.subject {
			f.t.Errorf("planted %s at %s, the doctor finds %v", damage, plant.subject, found)
		}
		f.doctor("--repair")
		f.settle("the repair of what is " + string(damage))
	}
}

// doctor has the terminal's doctor look at the feed.
func (f *fed) doctor(args ...string) (found []muster.FeedFinding) {
	f.t.Helper()
	doctor := exec.Command("muster", append([]string{"doctor", "--verify-feed", "-o", "json", "--server", f.url}, args...)...)
	out, err := doctor.Output()
	if code := doctor.ProcessState.ExitCode(); code != 0 && code != 8 {
		f.t.Fatalf("the doctor ends with %v: %s", err, out)
	}
	if err := json.Unmarshal(out, &found); err != nil {
		f.t.Fatal(err)
	}
	return found
}

// TestFeed_NATSInside kills the server with the NATS server that is in it, and takes its files away.
func TestFeed_NATSInside(t *testing.T) {
	t.Parallel()
	n := newNATS(t)
	s := newServer(t, "--nats-listen", n.addr, "--nats-token-file", tokenFile(t))
	n.dir = filepath.Join(s.dir, "nats")
	f := newFed(t, s, n)
	before := f.entries()
	for range 3 {
		f.mutate()
		s.kill() // with messages under way
		s.start()
		before[true] += 9
		f.settle("the server was killed")
		if found := f.entries(); !maps.Equal(found, before) {
			t.Errorf("after a kill there are %v entries, want %v", found, before)
		}
	}
	s.kill()
	n.wipe()
	s.start()
	delete(before, false)
	f.settle("the files of NATS were removed")
	if found := f.entries(); !maps.Equal(found, before) {
		t.Errorf("without its files there are %v entries, want %v", found, before)
	}
}
