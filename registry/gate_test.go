package registry_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/liveness"
)

// feed remembers what it is to keep.
type feed struct {
	keeps atomic.Int64 // how often it was told
	mu    sync.Mutex
	kept  []registry.FeedEntry
	flaw  string
}

func (f *feed) Keep(entries []registry.FeedEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = slices.Clone(entries)
	f.keeps.Add(1)
}

func (f *feed) Flaw() (string, time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flaw, time.Unix(1000, 0)
}

// CheckTTL refuses more than a day.
func (f *feed) CheckTTL(field string, ttl *time.Duration) error {
	if ttl != nil && *ttl > 24*time.Hour {
		return muster.InvalidField(field, "too long")
	}
	return nil
}

func (f *feed) turn(flaw string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flaw = flaw
}

func (f *feed) Verify(context.Context, bool) ([]muster.FeedFinding, error) { return nil, nil }

func (f *feed) now() []registry.FeedEntry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept
}

// registered deploys a service that registers itself, and returns it.
func registered(t *testing.T, h *host, change func(*muster.DeployServiceInput)) *muster.Service {
	t.Helper()
	return h.deploy(t, func(in *muster.DeployServiceInput) {
		in.RegisterWhenStable = []muster.RegistrationSpec{{Cluster: "prod", Protocol: "http", Annotations: muster.Map{"node": "{{ .Node.ID }}"}}}
		if change != nil {
			change(in)
		}
	})
}

// entries are the addresses and ports that a lookup gives.
func entries(t *testing.T, w *world, service string) []*muster.Entry {
	t.Helper()
	found, err := w.Registrations(muster.RegistrationFilter{Service: service}, false)
	if err != nil {
		t.Fatal(err)
	}
	return found.Entries
}

func wantEntries(t *testing.T, w *world, service string, want int) []*muster.Entry {
	t.Helper()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	got := entries(t, w, service)
	if len(got) != want {
		t.Fatalf("%d entries of %s, want %d: %+v", len(got), service, want, got)
	}
	return got
}

func TestGate_OpensWhenStableAndClosesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &feed{}
		h := newHost(t, setup{feed: f})
		s := registered(t, h, func(in *muster.DeployServiceInput) {
			in.StableFor = 10 * time.Second
			in.Checks = []muster.Check{{Name: "up", Kind: muster.TCPCheck}}
		})
		h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthUnknown))
		wantEntries(t, h.world, "web", 0)
		well := said(s, muster.ServiceRunning, muster.HealthOK)
		well.Checks = []muster.CheckResult{{Name: "up", Status: muster.CheckOK}}
		h.tell(t, muster.Running, well)
		wantEntries(t, h.world, "web", 0)
		if why := h.NotRegistered(h.Service(s.ID)); why == "" {
			t.Error("nothing says why it is not registered")
		}
		time.Sleep(10 * time.Second)
		got := wantEntries(t, h.world, "web", 1)[0]
		if got.Address != h.Instance(h.instance.ID).Addr || got.Port == nil || *got.Port != 80 || got.Annotations["node"] != "n1" || !got.Own {
			t.Errorf("the entry is %+v", got)
		}
		if kept := f.now(); len(kept) != 1 || !kept[0].Refresh {
			t.Errorf("the feed keeps %+v", kept)
		}
		bad := said(s, muster.ServiceRunning, muster.HealthBad)
		bad.Checks = []muster.CheckResult{{Name: "up", Status: muster.CheckCritical}}
		h.tell(t, muster.Running, bad)
		wantEntries(t, h.world, "web", 0)
		if kept := f.now(); len(kept) != 0 {
			t.Errorf("the feed still keeps %+v", kept)
		}
		checkLog(t, h.world)
	})
}

// An entry of a service outlives three beats, so that a server which starts hears of its node in time; one by
// hand lives as long as it is told.
func TestGate_TTLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, setup{feed: &feed{}})
		least := 3 * liveness.DefaultInterval
		for k, c := range []struct {
			name        string
			given, want *time.Duration
		}{
			{"unset", nil, nil},
			{"never", new(muster.RegistrationTTLForever), new(muster.RegistrationTTLForever)},
			{"short", new(time.Second), &least},
			{"as-long", &least, &least},
			{"longer", new(time.Hour), new(time.Hour)},
		} {
			s := registered(t, h, func(in *muster.DeployServiceInput) {
				in.Name, in.Port, in.RegisterWhenStable[0].TTL = c.name, 81+k, c.given
			})
			h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
			if got := wantEntries(t, h.world, c.name, 1)[0].TTL; (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
				t.Errorf("%s: the entry lives for %v, want %v", c.name, got, c.want)
			}
		}
		in := muster.RegisterInput{Cluster: "prod", Protocol: "tcp", Service: "db", Address: "192.0.2.7", TTL: new(time.Second)}
		if e, _, err := h.Register(ctx, in); err != nil || *e.TTL != time.Second {
			t.Errorf("got %+v, %v", e, err)
		}
		in.TTL = new(25 * time.Hour)
		_, _, err := h.Register(ctx, in)
		wantField(t, err, "ttl")
		_, _, err = h.DeployService(ctx, muster.DeployServiceInput{
			InstanceID: &h.instance.ID, Name: "x", Command: []string{"x"},
			RegisterWhenStable: []muster.RegistrationSpec{{Cluster: "prod", Protocol: "http"}, {Cluster: "prod", Protocol: "https", TTL: in.TTL}},
		})
		wantField(t, err, "registerWhenStable.ttl")
	})
}

func wantField(t *testing.T, err error, field string) {
	t.Helper()
	if e, ok := errors.AsType[*muster.Error](err); !ok || e.Code != muster.Invalid || e.Field != field {
		t.Errorf("got %v, want something about %s", err, field)
	}
}

func TestGate_RefreshesOnceANodeIsHeardOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := setup{dir: t.TempDir(), feed: &feed{}}
		h := newHost(t, again)
		s := registered(t, h, nil)
		h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
		wantEntries(t, h.world, "web", 1)
		h.stop()
		w := open(t, again)
		wantEntries(t, w, "web", 1)
		if kept := again.feed.now(); len(kept) != 1 || kept[0].Refresh {
			t.Fatalf("before a beat the feed keeps %+v", kept)
		}
		if _, err := w.Heartbeat(ctx, muster.HeartbeatInput{UID: h.node.UID, Incarnation: 1}); err != nil {
			t.Fatal(err)
		}
		wantEntries(t, w, "web", 1)
		if kept := again.feed.now(); len(kept) != 1 || !kept[0].Refresh {
			t.Errorf("after a beat the feed keeps %+v", kept)
		}
	})
}

func TestGate_OwnersShareAnEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, setup{})
		port := 443
		shared := func(name string, own int) func(*muster.DeployServiceInput) {
			return func(in *muster.DeployServiceInput) {
				in.Name, in.Port = name, own
				in.RegisterWhenStable = []muster.RegistrationSpec{{Cluster: "prod", Protocol: "http", Service: "shared", Address: "192.0.2.9", Port: &port}}
			}
		}
		a, b := h.deploy(t, shared("a", 81)), h.deploy(t, shared("b", 82))
		both := []muster.ServiceReportInput{said(a, muster.ServiceRunning, muster.HealthOK), said(b, muster.ServiceRunning, muster.HealthOK)}
		h.tell(t, muster.Running, both...)
		if got := wantEntries(t, h.world, "shared", 1)[0]; len(got.Owners) != 2 {
			t.Errorf("its owners are %v", got.Owners)
		}
		h.tell(t, muster.Running, said(a, muster.ServiceFailed, muster.HealthBad), both[1])
		if got := wantEntries(t, h.world, "shared", 1)[0]; len(got.Owners) != 1 || got.Owners[0] != string(b.ID) {
			t.Errorf("its owners are %v", got.Owners)
		}
		h.tell(t, muster.Running, said(a, muster.ServiceFailed, muster.HealthBad), said(b, muster.ServiceFailed, muster.HealthBad))
		wantEntries(t, h.world, "shared", 0)
	})
}

func TestGate_ByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &feed{}
		dir := t.TempDir()
		w := open(t, setup{dir: dir, feed: f})
		port := 5432
		in := muster.RegisterInput{Cluster: "prod", Protocol: "tcp", Service: "db", Address: "192.0.2.7", Port: &port}
		e, _, err := w.Register(ctx, in)
		if err != nil || e.Priority != muster.DefaultPriority {
			t.Fatalf("registered: %+v, %v", e, err)
		}
		revision := w.ServerInfo().Revision
		if _, _, err := w.Register(ctx, in); err != nil || w.ServerInfo().Revision != revision {
			t.Errorf("the same again made a change, or %v", err)
		}
		w.stop()
		w = open(t, setup{dir: dir, feed: f})
		wantEntries(t, w, "db", 1)
		registrar := muster.WithPrincipal(ctx, muster.Principal{Name: "ci", Role: muster.Registrar, Scope: muster.KeyScope{Services: []string{"web*"}}})
		_, _, err = w.Deregister(registrar, muster.DeregisterInput{Cluster: "prod", Protocol: "tcp", Service: "db", Address: "192.0.2.7", Port: &port})
		wantCode(t, err, muster.Forbidden)
		if _, _, err := w.Deregister(ctx, muster.DeregisterInput{Cluster: "prod", Protocol: "tcp", Service: "db", Address: "192.0.2.7", Port: &port}); err != nil {
			t.Fatal(err)
		}
		wantEntries(t, w, "db", 0)
		checkLog(t, w)
	})
}

// What is wrong with a feed that can be reached is a condition for as long as it is.
func TestClusterHealth_FeedFlawed(t *testing.T) {
	f := &feed{}
	w := open(t, setup{feed: f})
	for _, flaw := range []string{"", "one of the entries is not taken", ""} {
		f.turn(flaw)
		h := w.ClusterHealth()
		at := slices.IndexFunc(h.Conditions, func(c *muster.Condition) bool { return c.Name == muster.FeedFlawed })
		switch {
		case (at >= 0) != (flaw != ""), (h.Status == muster.ClusterDegraded) != (flaw != ""):
			t.Errorf("with the flaw %q it is %+v", flaw, h)
		case at >= 0 && (h.Conditions[at].Reason != flaw || h.Conditions[at].Since.Unix() != 1000):
			t.Errorf("got %+v", h.Conditions[at])
		}
	}
}

// Others write what is ours too: a lookup has it once, as ours, whatever theirs says.
func TestGate_TheSameEntryOfOthers(t *testing.T) {
	w := open(t, setup{feed: &feed{}})
	port := 80
	in := muster.RegisterInput{Cluster: "prod", Protocol: "http", Service: "web", Address: "192.0.2.5", Port: &port}
	if _, _, err := w.Register(ctx, in); err != nil {
		t.Fatal(err)
	}
	theirs := muster.Registration{Cluster: "prod", Protocol: "http", Service: "web", Address: "192.0.2.5", Port: &port, Priority: 1}
	if err := w.TakeForeign(ctx, []registry.Foreign{{Subject: "a", Entry: &theirs, Origin: "x"}}); err != nil {
		t.Fatal(err)
	}
	for _, preferred := range []bool{false, true} {
		found, err := w.Registrations(muster.RegistrationFilter{Service: "web"}, preferred)
		if err != nil || len(found.Entries) != 1 || !found.Entries[0].Own || found.Entries[0].Priority != muster.DefaultPriority {
			t.Errorf("preferred %t: found %+v, %v", preferred, found.Entries, err)
		}
	}
	if _, _, err := w.Deregister(ctx, muster.DeregisterInput{Cluster: "prod", Protocol: "http", Service: "web", Address: "192.0.2.5", Port: &port}); err != nil {
		t.Fatal(err)
	}
	if found := entries(t, w, "web"); len(found) != 1 || found[0].Own || found[0].Origin != "x" {
		t.Errorf("without ours: %+v", found)
	}
}

func TestGate_ForeignEntries(t *testing.T) {
	w := open(t, setup{})
	port := 80
	entry := muster.Registration{Cluster: "prod", Protocol: "http", Service: "web", Address: "2001:db8::5", Port: &port, Priority: 10}
	four := entry
	four.Address, four.Priority = "192.0.2.5", 20
	news := []registry.Foreign{{Subject: "a", Entry: &entry, Origin: "x"}, {Subject: "b", Entry: &four}}
	if err := w.TakeForeign(ctx, news); err != nil {
		t.Fatal(err)
	}
	revision := w.ServerInfo().Revision
	if err := w.TakeForeign(ctx, news); err != nil || w.ServerInfo().Revision != revision {
		t.Errorf("a refresh made a change, or %v", err)
	}
	found := entries(t, w, "web")
	if len(found) != 2 || found[0].Address != "192.0.2.5" {
		t.Errorf("found %+v", found)
	}
	preferred, err := w.Registrations(muster.RegistrationFilter{Cluster: "*", Service: "web"}, true)
	if err != nil || len(preferred.Entries) != 1 || preferred.Entries[0].Priority != 10 {
		t.Errorf("preferred: %+v, %v", preferred, err)
	}
	if err := w.TakeForeign(ctx, []registry.Foreign{{Subject: "a", Reason: "Remove"}}); err != nil {
		t.Fatal(err)
	}
	if found := entries(t, w, "web"); len(found) != 1 {
		t.Errorf("after a removal: %+v", found)
	}
	checkLog(t, w)
}

func TestGate_AddressAndAnnotationsFromTemplates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, setup{})
		s := h.deploy(t, func(in *muster.DeployServiceInput) {
			in.RegisterWhenStable = []muster.RegistrationSpec{
				{Cluster: "prod", Protocol: "http", Address: "{{ .Node.Addr }}", Annotations: muster.Map{"on": `{{ if .Service.Publish }}{{ .Node.ID }}{{ else }}{{ .Instance.ID }}{{ end }}`}},
				{Cluster: "prod", Protocol: "http", Address: "{{ .Node.ID }}"},
			}
		})
		h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
		got := wantEntries(t, h.world, "web", 1)[0]
		if got.Address != h.node.Addr || got.Annotations["on"] != string(h.instance.ID) {
			t.Errorf("the entry is %+v", got)
		}
		if problems := h.EntryProblems(h.Service(s.ID)); len(problems) != 1 || !strings.Contains(problems[0], "no IP address") {
			t.Errorf("problems: %q", problems)
		}
	})
}
