package registry_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

// others fills a registry with so many entries of others: ten of each service.
func others(t testing.TB, w *world, entries int) {
	t.Helper()
	addr := netip.MustParseAddr("198.18.0.0")
	var news []registry.Foreign
	for k := range entries {
		addr = addr.Next()
		e := muster.Registration{
			Cluster: "prod", Protocol: "http", Service: fmt.Sprint("s", k/10), Address: addr.String(), Port: new(80), Priority: 1 + k%10, Annotations: muster.Map{"k": "v"},
		}
		news = append(news, registry.Foreign{Subject: fmt.Sprint("subject-", k), Entry: &e, Origin: "x"})
	}
	for batch := range slices.Chunk(news, 1000) {
		if err := w.TakeForeign(ctx, batch); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRegistrations_CostWhatTheyFind looks one service's ten entries up among few and among very many: that takes
// as many allocations, no SQL and no word to the feed.
func TestRegistrations_CostWhatTheyFind(t *testing.T) {
	cost := func(t *testing.T, entries int) float64 {
		f := &feed{}
		w := open(t, setup{feed: f})
		others(t, w, entries)
		time.Sleep(time.Second) // the feed is told meanwhile
		synctest.Wait()
		before, kept := w.store.Statements(), f.keeps.Load()
		look := func() {
			found, err := w.Registrations(muster.RegistrationFilter{Cluster: "prod", Protocol: "*", Service: "s3"}, false)
			if err != nil || len(found.Entries) != 10 {
				t.Fatalf("found %+v, %v", found, err)
			}
		}
		allocations := testing.AllocsPerRun(100, look)
		if after := w.store.Statements(); after != before || f.keeps.Load() != kept {
			t.Errorf("among %d it took %d SQL statements and spoke %d times to the feed", entries, after-before, f.keeps.Load()-kept)
		}
		return allocations
	}
	var few, many float64
	synctest.Test(t, func(t *testing.T) { few = cost(t, 100) })
	synctest.Test(t, func(t *testing.T) { many = cost(t, 10_000) })
	t.Logf("%.0f allocations among 100 entries, %.0f among 10,000", few, many)
	if many > few+10 { // the index is deeper
		t.Errorf("10 of 10,000 entries take %.0f allocations, 10 of 100 take %.0f", many, few)
	}
	if many > 100 {
		t.Errorf("10 entries take %.0f allocations", many)
	}
}

// What is not stable is withheld, with its health, and never beside what is in the feed.
func TestWithheld_IsWhatIsNotStable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, setup{})
		s := registered(t, h, nil)
		withheld := func(f muster.RegistrationFilter) []registry.Withheld {
			t.Helper()
			found, err := h.Withheld(f)
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
		wantEntries(t, h.world, "web", 1)
		if found := withheld(muster.RegistrationFilter{}); len(found) != 0 {
			t.Errorf("what is in the feed is withheld: %+v", found)
		}
		h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthBad))
		wantEntries(t, h.world, "web", 0)
		if found := withheld(muster.RegistrationFilter{Service: "web"}); len(found) != 1 || found[0].Service != "web" || found[0].Health != muster.HealthBad {
			t.Errorf("withheld are %+v", found)
		}
		if found := withheld(muster.RegistrationFilter{Service: "db"}); len(found) != 0 {
			t.Errorf("of another service are withheld %+v", found)
		}
		if _, _, err := h.StopService(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		if found := withheld(muster.RegistrationFilter{}); len(found) != 0 {
			t.Errorf("of what nobody wants are withheld %+v", found)
		}
	})
}

func BenchmarkRegistrations_TenOf10000(b *testing.B) {
	w := open(b, setup{})
	others(b, w, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		if found, err := w.Registrations(muster.RegistrationFilter{Service: "s3"}, false); err != nil || len(found.Entries) != 10 {
			b.Fatal(found, err)
		}
	}
}
