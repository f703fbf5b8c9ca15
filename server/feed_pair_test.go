package server_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	feedwire "github.com/muster-cloud/muster/registration"
	"github.com/muster-cloud/muster/server"
)

// sharedNATS is a NATS server that several of ours publish to.
func sharedNATS(t *testing.T) (url string) {
	t.Helper()
	e, err := feedwire.NewEmbedded(feedwire.EmbeddedOptions{Dir: t.TempDir(), Listen: "127.0.0.1:0", Token: "s3cret", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	if err := e.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	return "nats://s3cret@" + e.Addr()
}

// sharing runs a server that publishes there.
func sharing(t *testing.T, url string) (c *client.Client, uid string, stop func()) {
	t.Helper()
	s, err := server.Open(t.Context(), server.Options{
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", Keyless: true, Logger: slog.New(slog.DiscardHandler),
		Feed: server.FeedOptions{Publish: "jetstream", URL: url},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	end := run(t, s)
	c = connect(t, s)
	info, err := c.ServerInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c, info.ClusterUID, sync.OnceFunc(func() {
		_ = end()
		_ = s.Close()
	})
}

// watched are the events of the feed that a client has seen.
type watched struct {
	mu   sync.Mutex
	seen []client.Event
}

func watchFeed(t *testing.T, c *client.Client) *watched {
	t.Helper()
	w := &watched{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.WatchRegistrations(ctx, nil, client.WatchOptions{}, func(e client.Event) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.seen = append(w.seen, e)
			return nil
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// removal waits for the event that tells of an entry's end.
func (w *watched) removal(t *testing.T, address string) (found client.Event) {
	t.Helper()
	eventually(t, "the end of "+address+" is told", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		at := slices.IndexFunc(w.seen, func(e client.Event) bool { return e.Left && e.Registration.Address == address })
		if at >= 0 {
			found = w.seen[at]
		}
		return at >= 0
	})
	return found
}

func shareable(address string, priority int, ttl time.Duration) muster.RegisterInput {
	return muster.RegisterInput{
		Cluster: "prod", Protocol: "http", Service: "web", Address: address, Port: new(80), Priority: &priority,
		TTL: &ttl, Annotations: muster.Map{"zone": address},
	}
}

// Of two clusters with one stream one goes away for good: what only it had is removed when its time to live has
// passed, what both had stays as the other's, and the other's answers are complete all the time.
func TestFeed_OfTwoClustersOneGoesAway(t *testing.T) {
	url := sharedNATS(t)
	leaving, leavingUID, leave := sharing(t, url)
	staying, stayingUID, _ := sharing(t, url)
	seen := watchFeed(t, staying)
	const only, taken, both = "192.0.2.1", "192.0.2.2", "192.0.2.3"
	for _, in := range []muster.RegisterInput{shareable(only, 10, 2*time.Second), shareable(taken, 20, time.Hour), shareable(both, 30, 2*time.Second)} {
		if _, err := leaving.Register(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := staying.Register(t.Context(), shareable(both, 40, time.Hour)); err != nil {
		t.Fatal(err)
	}
	look := func() map[string]*client.Entry {
		found, err := staying.Registrations(t.Context(), muster.RegistrationFilter{Service: "web"}, false)
		if err != nil {
			t.Fatal(err)
		}
		entries := map[string]*client.Entry{}
		for _, e := range found.Entries {
			if entries[e.Address] != nil {
				t.Errorf("%s is found twice", e.Address)
			}
			entries[e.Address] = e
		}
		if len(entries) > 1 && (!found.Complete || time.Since(found.AsOf) > time.Minute) {
			t.Errorf("complete %t, as of %s", found.Complete, found.AsOf)
		}
		return entries
	}
	eventually(t, "what the other has is found", func() bool { return len(look()) == 3 })
	if e := look(); e[only].Own || e[only].Origin != leavingUID || e[both].Priority != 40 || !e[both].Own {
		t.Errorf("found %+v and %+v", e[only], e[both])
	}
	where := muster.DeregisterInput{Cluster: "prod", Protocol: "http", Service: "web", Address: taken, Port: new(80)}
	if _, err := leaving.Deregister(t.Context(), where); err != nil {
		t.Fatal(err)
	}
	if e := seen.removal(t, taken); e.Reason != string(feedwire.Removed) || e.Registration.Priority != 20 {
		t.Errorf("got %+v of %+v", e, e.Registration)
	}
	leave()
	e := seen.removal(t, only)
	if e.Reason != string(feedwire.Expired) || e.Registration.Origin != leavingUID || e.Registration.Priority != 10 || *e.Registration.Port != 80 || (*e.Registration.Annotations)["zone"] != only {
		t.Errorf("got %+v of %+v", e, e.Registration)
	}
	feed := readFeed(t, url)
	eventually(t, "the one that stays has what both had", func() bool {
		held := feed.held()
		return len(held) == 1 && held[0].Origin == stayingUID && held[0].Entry != nil && held[0].Entry.Priority == 40
	})
	if found := look(); len(found) != 1 || found[both] == nil || !found[both].Own {
		t.Errorf("found %+v", found)
	}
	eventually(t, "nothing differs", func() bool {
		findings, err := staying.VerifyFeed(t.Context(), false)
		return err == nil && len(findings) == 0
	})
}
