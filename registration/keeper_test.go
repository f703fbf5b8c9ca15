package registration_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

type desired = map[string]*muster.Registration

func wanted(entries ...*muster.Registration) desired {
	d := desired{}
	for _, r := range entries {
		d[registration.Subject(r)] = r
	}
	return d
}

// gate is a Publisher that fails, or waits, when it is told to.
type gate struct {
	registration.Publisher
	mu   sync.Mutex
	fail error
	hold chan struct{} // nil: nothing is held up
	sent int
}

func (g *gate) set(fail error, hold chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fail, g.hold = fail, hold
}

func (g *gate) tries() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sent
}

func (g *gate) Publish(ctx context.Context, r *muster.Registration, after uint64) (uint64, error) {
	g.mu.Lock()
	fail, hold := g.fail, g.hold
	g.sent++
	g.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if fail != nil {
		return 0, fail
	}
	return g.Publisher.Publish(ctx, r, after)
}

// live returns what the stream holds beside markers, by subject.
func live(t testing.TB, s *registration.Stream) map[string]*registration.Message {
	t.Helper()
	held, err := registration.Held(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]*registration.Message{}
	for i := range held {
		if held[i].Gone == "" {
			m[held[i].Subject] = &held[i]
		}
	}
	return m
}

// bubble runs a Keeper on a stream of its own, in virtual time.
func bubble(t *testing.T, f func(t *testing.T, k *registration.Keeper, s *registration.Stream, g *gate)) {
	t.Helper()
	virtually(t, func(t *testing.T) {
		s, _ := stream(t, registration.StreamOptions{})
		g := &gate{Publisher: registration.NewJetStream(s, "uid-1")}
		k := registration.NewKeeper(g, registration.KeeperOptions{Origin: "uid-1", MaxAge: s.MaxAge, Logger: quiet()})
		running(t, k.Run)
		f(t, k, s, g)
	})
}

func wait(t testing.TB, k *registration.Keeper) {
	t.Helper()
	if err := k.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestKeeper_RefreshesWhileDesired(t *testing.T) {
	bubble(t, func(t *testing.T, k *registration.Keeper, s *registration.Stream, _ *gate) {
		short, unset, never := entry("short", "10.0.0.1", 80, 30*time.Second), entry("unset", "10.0.0.1", 80, 0), entry("never", "10.0.0.1", 80, muster.RegistrationTTLForever)
		k.Replace(wanted(short, unset, never))
		wait(t, k)
		for range 20 { // ten times to live, looked at twice in each
			time.Sleep(15 * time.Second)
			if got := live(t, s); len(got) != 3 {
				t.Fatalf("the feed holds %d", len(got))
			}
		}
		c := k.Counts()
		// A third of 30 s, up to a tenth earlier: 30 to 33 refreshes in 300 s.
		if c.Publishes != 3 || c.Refreshes < 30 || c.Refreshes > 34 || c.Markers != 0 || c.Overtaken != 0 {
			t.Errorf("got %+v", c)
		}
		k.Replace(wanted(unset, never))
		time.Sleep(25 * time.Hour)
		if got := live(t, s); len(got) != 2 {
			t.Errorf("a day later the feed holds %d", len(got))
		}
	})
}

func TestKeeper_RemovesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, k *registration.Keeper, s *registration.Stream, _ *gate) {
		a, b := entry("a", "10.0.0.1", 80, time.Minute), entry("b", "10.0.0.1", 80, time.Minute)
		k.Replace(wanted(a, b))
		wait(t, k)
		start := time.Now()
		k.Set(desired{registration.Subject(a): nil})
		wait(t, k)
		if got := live(t, s); len(got) != 1 || got[registration.Subject(b)] == nil || time.Since(start) > time.Second {
			t.Errorf("after %s the feed holds %v", time.Since(start), got)
		}
		k.Replace(nil)
		wait(t, k)
		if got, c := live(t, s), k.Counts(); len(got) != 0 || c.Markers != 2 || c.Entries != 0 || c.Pending != 0 {
			t.Errorf("the feed holds %v; %+v", got, c)
		}
		published := k.Counts().Refreshes
		time.Sleep(time.Hour)
		if c := k.Counts(); c.Refreshes != published {
			t.Errorf("what is not desired is refreshed: %+v", c)
		}
	})
}

func TestKeeper_PublishesChangesAndNothingElse(t *testing.T) {
	bubble(t, func(t *testing.T, k *registration.Keeper, s *registration.Stream, _ *gate) {
		r := entry("a", "10.0.0.1", 80, time.Minute)
		for range 3 {
			k.Replace(wanted(entry("a", "10.0.0.1", 80, time.Minute)))
			wait(t, k)
		}
		changed := entry("a", "10.0.0.1", 80, time.Minute)
		changed.Priority = 7
		k.Set(wanted(changed))
		wait(t, k)
		got := live(t, s)[registration.Subject(r)]
		if c := k.Counts(); got.Entry.Priority != 7 || c.Publishes != 2 || c.Refreshes != 0 {
			t.Errorf("got %+v; %+v", got.Entry, c)
		}
	})
}

// A publication that was held up is followed by the removal, whichever way it ends.
func TestKeeper_LateRetriesDoNotResurrect(t *testing.T) {
	for _, c := range []struct {
		name string
		fail error
	}{
		{"it arrives after all", nil},
		{"it fails", fmt.Errorf("%w: timeout", registration.ErrUnavailable)},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, k *registration.Keeper, s *registration.Stream, g *gate) {
				r := entry("a", "10.0.0.1", 80, time.Minute)
				hold := make(chan struct{})
				g.set(c.fail, hold)
				k.Set(wanted(r))
				synctest.Wait()
				k.Set(desired{registration.Subject(r): nil})
				time.Sleep(10 * time.Second)
				close(hold)
				wait(t, k)
				time.Sleep(10 * time.Minute)
				if got := live(t, s); len(got) != 0 {
					t.Errorf("the feed holds %v", got)
				}
				if g.tries() != 1 {
					t.Errorf("%d publications", g.tries())
				}
			})
		})
	}
}

func TestKeeper_AnOutageCostsOneTryAtATime(t *testing.T) {
	virtually(t, func(t *testing.T) {
		s, _ := stream(t, registration.StreamOptions{})
		g := &gate{Publisher: registration.NewJetStream(s, "uid-1")}
		g.set(fmt.Errorf("%w: no route", registration.ErrUnavailable), nil)
		states := make(chan registration.State, 10)
		k := registration.NewKeeper(g, registration.KeeperOptions{Origin: "uid-1", Logger: quiet(), OnState: func(s registration.State) { states <- s }})
		running(t, k.Run)
		all := desired{}
		for i := range 1000 {
			r := entry("s", fmt.Sprintf("10.0.%d.%d", i/250, i%250), 80, time.Minute)
			all[registration.Subject(r)] = r
		}
		began := time.Now()
		k.Replace(all)
		if down := <-states; down.Up || down.Since != began || down.Reason == "" {
			t.Errorf("got %+v", down)
		}
		time.Sleep(30 * time.Minute)
		// 32 at first, then one every 5 s.
		if n := g.tries(); n > 32+10+30*60/5 || n < 300 {
			t.Errorf("%d tries in 30 minutes", n)
		}
		g.set(nil, nil)
		k.Wake()
		wait(t, k)
		if up := <-states; !up.Up || up.Since.Sub(began) != 30*time.Minute {
			t.Errorf("got %+v", up)
		}
		if got, c := live(t, s), k.Counts(); len(got) != 1000 || c.Publishes != 1000 {
			t.Errorf("the feed holds %d; %+v", len(got), c)
		}
	})
}

func TestKeeper_RefusalIsNamedAndHarmsNobodyElse(t *testing.T) {
	bubble(t, func(t *testing.T, k *registration.Keeper, s *registration.Stream, g *gate) {
		good := entry("good", "10.0.0.1", 80, time.Minute)
		bad := entry("bad", "10.0.0.1", 80, 100*time.Millisecond) // which validation would refuse
		k.Replace(wanted(good, bad))
		if err := k.Wait(t.Context(), registration.Subject(good)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		refused := k.Refused()
		if len(refused) != 1 || !errors.Is(refused[registration.Subject(bad)], registration.ErrRefused) {
			t.Errorf("got %v", refused)
		}
		if n := k.Counts().Refused; n != 1 {
			t.Errorf("%d are refused", n)
		}
		if n := g.tries(); n > 20 {
			t.Errorf("%d tries in a minute", n)
		}
		k.Set(desired{registration.Subject(bad): nil})
		wait(t, k)
		if len(k.Refused()) != 0 || len(live(t, s)) != 1 {
			t.Errorf("got %v", k.Refused())
		}
	})
}

// A server that begins anew knows nothing of what is in the feed.
func TestKeeper_TakesOverFromItsEarlierLife(t *testing.T) {
	virtually(t, func(t *testing.T) {
		s, _ := stream(t, registration.StreamOptions{})
		pub := registration.NewJetStream(s, "uid-1")
		stays, goes, taken := entry("stays", "10.0.0.1", 80, time.Hour), entry("goes", "10.0.0.1", 80, time.Hour), entry("taken", "10.0.0.1", 80, time.Hour)
		life := func() (*registration.Keeper, func()) {
			k := registration.NewKeeper(pub, registration.KeeperOptions{Origin: "uid-1", Logger: quiet()})
			return k, running(t, k.Run)
		}
		k, stop := life()
		k.Replace(wanted(stays, goes, taken))
		wait(t, k)
		stop()
		last, err := pub.Last(t.Context(), registration.Subject(taken))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := registration.NewJetStream(s, "uid-2").Publish(t.Context(), taken, last.Sequence); err != nil {
			t.Fatal(err)
		}

		k, stop = life()
		defer stop()
		k.Replace(wanted(stays))
		k.Set(desired{registration.Subject(taken): nil}) // it is not ours any more
		wait(t, k)
		findings, err := k.Verify(t.Context(), s, true)
		if diff := cmp.Diff([]registration.Finding{{registration.Subject(goes), registration.Stray}}, findings); diff != "" || err != nil {
			t.Error(diff, err)
		}
		wait(t, k)
		got := live(t, s)
		if len(got) != 2 || got[registration.Subject(stays)] == nil || got[registration.Subject(taken)].Origin != "uid-2" {
			t.Errorf("the feed holds %v", got)
		}
		if findings, err := k.Verify(t.Context(), s, true); len(findings) != 0 || err != nil {
			t.Errorf("got %v, %v", findings, err)
		}
	})
}

func TestKeeper_VerifyFindsAndRepairsEachDamage(t *testing.T) {
	bubble(t, func(t *testing.T, k *registration.Keeper, s *registration.Stream, _ *gate) {
		names := []string{"missing", "different", "ttl", "foreign", "fine", "expired"}
		all := desired{}
		for _, name := range names {
			r := entry(name, "10.0.0.1", 80, time.Hour)
			all[registration.Subject(r)] = r
		}
		k.Replace(all)
		wait(t, k)
		ours, theirs := registration.NewJetStream(s, "uid-1"), registration.NewJetStream(s, "uid-2")
		overwrite := func(pub registration.Publisher, r *muster.Registration, remove bool) {
			t.Helper()
			last, err := pub.Last(t.Context(), registration.Subject(r))
			if err != nil {
				t.Fatal(err)
			}
			var after uint64
			if last != nil {
				after = last.Sequence
			}
			if remove {
				_, err = pub.Remove(t.Context(), registration.Subject(r), after)
			} else {
				_, err = pub.Publish(t.Context(), r, after)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		overwrite(ours, entry("missing", "10.0.0.1", 80, time.Hour), true)
		other := entry("different", "10.0.0.1", 80, time.Hour)
		other.Priority = 1
		overwrite(ours, other, false)
		overwrite(ours, entry("ttl", "10.0.0.1", 80, 2*time.Hour), false)
		overwrite(theirs, entry("foreign", "10.0.0.1", 80, time.Hour), false)
		overwrite(ours, entry("stray", "10.0.0.1", 80, time.Hour), false)
		overwrite(theirs, entry("neighbour", "10.0.0.1", 80, time.Hour), false)
		overwrite(ours, entry("expired", "10.0.0.1", 80, time.Second), false)
		time.Sleep(3 * time.Second)

		subject := func(name string) string { return registration.Subject(entry(name, "10.0.0.1", 80, 0)) }
		want := []registration.Finding{
			{subject("different"), registration.Different},
			{subject("expired"), registration.Missing},
			{subject("foreign"), registration.Foreign},
			{subject("missing"), registration.Missing},
			{subject("stray"), registration.Stray},
			{subject("ttl"), registration.Different}, // the text in it, too
		}
		for _, repair := range []bool{false, true} {
			findings, err := k.Verify(t.Context(), s, repair)
			if diff := cmp.Diff(want, findings); diff != "" || err != nil {
				t.Errorf("repair %t: %s %v", repair, diff, err)
			}
		}
		wait(t, k)
		if findings, err := k.Verify(t.Context(), s, false); len(findings) != 0 || err != nil {
			t.Errorf("after the repair: %v, %v", findings, err)
		}
		if got := live(t, s); len(got) != len(names)+1 || got[subject("neighbour")] == nil {
			t.Errorf("the feed holds %d", len(got))
		}
	})
}
