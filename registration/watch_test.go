package registration_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

// recorder is a Follower that remembers.
type recorder struct {
	mu     sync.Mutex
	there  map[string]registration.Message
	log    []string // what it was told since it was last asked: put SERVICE, gone SERVICE REASON, synced, lost
	synced int
	turn   chan struct{} // closed at the next
}

func newRecorder() *recorder {
	return &recorder{there: map[string]registration.Message{}, turn: make(chan struct{})}
}

func (r *recorder) told(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
	close(r.turn)
	r.turn = make(chan struct{})
}

func (r *recorder) Put(m registration.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.there[m.Subject] = m
	r.told("put %s", m.Entry.Service)
}

func (r *recorder) Gone(d registration.Departure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.there[d.Subject]
	if !ok {
		r.told("gone %s, which was not there", d.Subject)
		return
	}
	delete(r.there, d.Subject)
	r.told("gone %s %s", m.Entry.Service, d.Reason)
}

func (r *recorder) Synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced++
	r.told("synced")
}

func (r *recorder) Lost(error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told("lost")
}

// at returns what it knows of a subject.
func (r *recorder) at(subject string) registration.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.there[subject]
}

// all returns what it knows.
func (r *recorder) all() map[string]registration.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.there)
}

// since returns what it was told since it was last asked.
func (r *recorder) since() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.log
	r.log = nil
	return log
}

// until waits until what is true of what it knows.
func (r *recorder) until(t testing.TB, what string, is func(*recorder) bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		r.mu.Lock()
		ok, turn := is(r), r.turn
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-turn:
		case <-deadline:
			t.Fatalf("%s did not come true; it was told %q", what, r.since())
		}
	}
}

func inSync(n int) func(*recorder) bool { return func(r *recorder) bool { return r.synced >= n } }

func put(t testing.TB, pub registration.Publisher, entries ...*muster.Registration) {
	t.Helper()
	for _, r := range entries {
		last, err := pub.Last(t.Context(), registration.Subject(r))
		if err != nil {
			t.Fatal(err)
		}
		after := uint64(0)
		if last != nil {
			after = last.Sequence
		}
		if _, err := pub.Publish(t.Context(), r, after); err != nil {
			t.Fatal(err)
		}
	}
}

func remove(t testing.TB, pub registration.Publisher, r *muster.Registration) {
	t.Helper()
	last, err := pub.Last(t.Context(), registration.Subject(r))
	if err != nil || last == nil {
		t.Fatal(last, err)
	}
	if _, err := pub.Remove(t.Context(), registration.Subject(r), last.Sequence); err != nil {
		t.Fatal(err)
	}
}

// mirrored runs a mirror on a stream of its own, in virtual time, which has the services a and b.
func mirrored(t *testing.T, f func(t *testing.T, s *registration.Stream, c *registration.Conn, m *registration.Mirror, r *recorder)) {
	t.Helper()
	virtually(t, func(t *testing.T) {
		s, conn := stream(t, registration.StreamOptions{})
		put(t, registration.NewJetStream(s, "uid-1"), entry("a", "10.0.0.1", 80, time.Hour), entry("b", "10.0.0.1", 80, time.Hour))
		r := newRecorder()
		m := registration.NewMirror(s, r, registration.MirrorOptions{Logger: quiet()})
		running(t, m.Run)
		r.until(t, "synced", inSync(1))
		if got := r.since(); !slices.Equal(got, []string{"put a", "put b", "synced"}) {
			t.Fatalf("got %q", got)
		}
		f(t, s, conn, m, r)
	})
}

func TestMirror_TellsOfWhatHappens(t *testing.T) {
	mirrored(t, func(t *testing.T, s *registration.Stream, _ *registration.Conn, m *registration.Mirror, r *recorder) {
		pub := registration.NewJetStream(s, "uid-2")
		put(t, pub, entry("a", "10.0.0.1", 80, time.Hour), entry("c", "10.0.0.1", 80, 5*time.Second))
		remove(t, pub, entry("b", "10.0.0.1", 80, 0))
		time.Sleep(10 * time.Second)
		if got := r.since(); !slices.Equal(got, []string{"put a", "put c", "gone b Remove", "gone c MaxAge"}) {
			t.Errorf("got %q", got)
		}
		a := r.at(registration.Subject(entry("a", "10.0.0.1", 80, 0)))
		if a.Origin != "uid-2" || a.TTL != "1h0m0s" || a.At.IsZero() || a.Sequence != 3 || a.Entry.Priority != 100 {
			t.Errorf("got %+v", a)
		}
		if c := m.Counts(); c.Entries != 1 || c.Resyncs != 1 || c.Bad != 0 {
			t.Errorf("got %+v", c)
		}
	})
}

// ccm removes by purging, which leaves no word.
func TestMirror_NoticesAPurge(t *testing.T) {
	mirrored(t, func(t *testing.T, s *registration.Stream, c *registration.Conn, m *registration.Mirror, r *recorder) {
		subject := registration.Subject(entry("a", "10.0.0.1", 80, 0))
		purge(t, c, subject)
		time.Sleep(registration.DefaultCheckEvery + 6*time.Second)
		if got := r.since(); !slices.Equal(got, []string{"gone a Purge"}) || m.Counts().Resyncs != 1 {
			t.Errorf("got %q, %+v", got, m.Counts())
		}
		put(t, registration.NewJetStream(s, ""), entry("a", "10.0.0.1", 80, time.Hour))
		time.Sleep(time.Second)
		if got := r.since(); !slices.Equal(got, []string{"put a"}) {
			t.Errorf("got %q", got)
		}
	})
}

func TestMirror_SurvivesAnotherStream(t *testing.T) {
	mirrored(t, func(t *testing.T, s *registration.Stream, c *registration.Conn, _ *registration.Mirror, r *recorder) {
		if err := c.JetStream().DeleteStream(t.Context(), "REGISTRATION"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := r.since(); len(got) < 2 || slices.ContainsFunc(got, func(s string) bool { return s != "lost" }) {
			t.Errorf("without a stream: %q", got)
		}
		if _, err := s.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		// a is back with the same number and another text, b is not, and c is new.
		a := entry("a", "10.0.0.1", 80, time.Hour)
		a.Priority = 7
		put(t, registration.NewJetStream(s, ""), a, entry("c", "10.0.0.1", 80, time.Hour))
		time.Sleep(time.Minute)
		if got := slices.DeleteFunc(r.since(), func(s string) bool { return s == "lost" }); !slices.Equal(got, []string{"put a", "put c", "gone b Purge", "synced"}) {
			t.Errorf("got %q", got)
		}
		if m := r.at(registration.Subject(a)); m.Sequence != 1 || m.Entry.Priority != 7 {
			t.Errorf("got %+v", m)
		}
	})
}

// A stream that was replaced within an instant looks almost the same.
func TestMirror_SurvivesAStreamReplacedAtOnce(t *testing.T) {
	mirrored(t, func(t *testing.T, s *registration.Stream, c *registration.Conn, _ *registration.Mirror, r *recorder) {
		if err := c.JetStream().DeleteStream(t.Context(), "REGISTRATION"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		put(t, registration.NewJetStream(s, ""), entry("b", "10.0.0.1", 80, time.Hour), entry("c", "10.0.0.1", 80, time.Hour))
		time.Sleep(time.Minute)
		if got := slices.DeleteFunc(r.since(), func(s string) bool { return s == "lost" }); !slices.Equal(got, []string{"put b", "put c", "gone a Purge", "synced"}) {
			t.Errorf("got %q", got)
		}
	})
}

func purge(t testing.TB, c *registration.Conn, subject string) {
	t.Helper()
	found, err := c.JetStream().Stream(t.Context(), "REGISTRATION")
	if err != nil {
		t.Fatal(err)
	}
	if err := found.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
		t.Fatal(err)
	}
}

func TestMirror_SkipsWhatIsNoEntry(t *testing.T) {
	virtually(t, func(t *testing.T) {
		s, conn := stream(t, registration.StreamOptions{})
		put(t, registration.NewJetStream(s, "uid-1"), entry("a", "10.0.0.1", 80, time.Hour), entry("b", "10.0.0.1", 80, time.Hour))
		var text bytes.Buffer
		r := newRecorder()
		m := registration.NewMirror(s, r, registration.MirrorOptions{Logger: slog.New(slog.NewTextHandler(&text, nil))})
		stop := running(t, m.Run)
		r.until(t, "synced", inSync(1))
		r.since()
		send := func(subject, reason, data string) {
			t.Helper()
			msg := &nats.Msg{Subject: subject, Data: []byte(data), Header: nats.Header{"Nats-Rollup": {"sub"}, "Muster-Origin": {"uid-1"}}}
			if reason != "" {
				msg.Header.Set("Nats-Marker-Reason", reason)
			}
			if _, err := conn.JetStream().PublishMsg(t.Context(), msg); err != nil {
				t.Fatal(err)
			}
		}
		subject := func(name string) string { return registration.Subject(entry(name, "10.0.0.1", 80, 0)) }
		send(subject("a"), "", `{"cluster":`)
		time.Sleep(time.Second)
		send(subject("a"), "", `{"cluster":`)                      // in the place of one
		send(subject("b"), "Nobody", "")                           // a marker with an unknown reason
		send(registration.Prefix+".x", "", "{}")                   // no subject of an entry
		send(subject("forged"), "", `{"cluster":"another"}`)       // says that it is ours
		send(subject("large"), "", strings.Repeat("x", 1<<20-200)) // 1 MB
		put(t, registration.NewJetStream(s, "uid-1"), entry("c", "10.0.0.1", 80, time.Hour))
		time.Sleep(time.Minute)
		if got := r.since(); !slices.Equal(got, []string{"gone a Purge", "gone b Remove", "put c"}) {
			t.Errorf("got %q", got)
		}
		if c := m.Counts(); c.Bad != 6 || c.Entries != 1 || c.Resyncs != 1 {
			t.Errorf("got %+v", c)
		}
		stop()
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		for i, name := range []string{"prod.http.a.", "Nobody", "v1.x", "prod.http.forged.", "prod.http.large."} {
			if len(lines) != 5 || !strings.Contains(lines[i], name) || len(lines[i]) > 500 {
				t.Errorf("the log's line %d does not name %q:\n%s", i, name, text.String())
			}
		}
	})
}

func TestMirror_FollowsNoMoreThanItIsAllowed(t *testing.T) {
	virtually(t, func(t *testing.T) {
		s, _ := stream(t, registration.StreamOptions{})
		pub := registration.NewJetStream(s, "")
		for i := range 20 {
			put(t, pub, entry(fmt.Sprintf("s%d", i), "10.0.0.1", 80, time.Hour))
		}
		r := newRecorder()
		m := registration.NewMirror(s, r, registration.MirrorOptions{MaxEntries: 15, Logger: quiet()})
		running(t, m.Run)
		r.until(t, "synced", inSync(1))
		if c := m.Counts(); c.Entries != 15 || c.Beyond != 5 {
			t.Errorf("got %+v", c)
		}
	})
}

// The server goes away and comes back a hundred times; what happened meanwhile is told, and
// nothing is left on it.
func TestMirror_SurvivesRestarts(t *testing.T) {
	virtually(t, func(t *testing.T) {
		e := embedded(t, registration.EmbeddedOptions{})
		conn := connect(t, registration.ConnectOptions{Embedded: e})
		s := registration.NewStream(conn, registration.StreamOptions{Heal: e.Heal, Logger: quiet()})
		running(t, s.Run)
		r := newRecorder()
		m := registration.NewMirror(s, r, registration.MirrorOptions{Logger: quiet()})
		running(t, m.Run)
		k := registration.NewKeeper(registration.NewJetStream(s, "uid-1"), registration.KeeperOptions{Origin: "uid-1", Logger: quiet()})
		running(t, k.Run)
		want := map[string]bool{}
		for round := range 100 {
			name := fmt.Sprintf("s%d", round%7)
			subject := registration.Subject(entry(name, "10.0.0.1", 80, 0))
			e.Stop()
			if want[subject] {
				delete(want, subject)
				k.Set(desired{subject: nil})
			} else {
				want[subject] = true
				k.Set(wanted(entry(name, "10.0.0.1", 80, time.Hour)))
			}
			time.Sleep(time.Minute)
			wait(t, k)
			synctest.Wait()
			r.mu.Lock()
			got := map[string]bool{}
			for subject := range r.there {
				got[subject] = true
			}
			r.mu.Unlock()
			if !maps.Equal(got, want) {
				t.Fatalf("round %d: got %v, want %v; it was told %q", round, got, want, r.since())
			}
			r.since()
		}
		found, err := conn.JetStream().Stream(t.Context(), "REGISTRATION")
		if err != nil {
			t.Fatal(err)
		}
		if n := found.CachedInfo().State.Consumers; n > 1 {
			t.Errorf("%d consumers after 100 restarts", n)
		}
	})
}

// 30 minutes without the server: afterwards the feed has what is desired, and the mirror what is in
// the feed, whatever changed meanwhile.
func TestFeed_RecoversFromALongOutage(t *testing.T) {
	virtually(t, func(t *testing.T) {
		e := embedded(t, registration.EmbeddedOptions{})
		conn := connect(t, registration.ConnectOptions{Embedded: e})
		var down atomic.Bool
		down.Store(true)
		heal := func(ctx context.Context) error {
			if down.Load() {
				return nil
			}
			return e.Heal(ctx)
		}
		s := registration.NewStream(conn, registration.StreamOptions{Heal: heal, Logger: quiet()})
		k := registration.NewKeeper(registration.NewJetStream(s, "uid-1"), registration.KeeperOptions{Origin: "uid-1", Logger: quiet()})
		r := newRecorder()
		m := registration.NewMirror(s, r, registration.MirrorOptions{Logger: quiet()})
		running(t, s.Run)
		running(t, k.Run)
		running(t, m.Run)
		k.Replace(wanted(entry("stays", "10.0.0.1", 80, time.Minute), entry("goes", "10.0.0.1", 80, muster.RegistrationTTLForever), entry("changes", "10.0.0.1", 80, time.Hour)))
		wait(t, k)
		e.Stop()
		changed := entry("changes", "10.0.0.1", 80, time.Hour)
		changed.Annotations = muster.Map{"version": "2"}
		k.Replace(wanted(entry("stays", "10.0.0.1", 80, time.Minute), changed, entry("new", "10.0.0.1", 80, 0)))
		time.Sleep(30 * time.Minute)
		if st := s.State(); st.Up || st.Reason == "" {
			t.Errorf("the feed is %+v", st)
		}
		down.Store(false)
		time.Sleep(time.Minute)
		wait(t, k)
		if st := s.State(); !st.Up {
			t.Errorf("the feed is %+v", st)
		}
		findings, err := k.Verify(t.Context(), s, false)
		if err != nil || len(findings) != 0 {
			t.Errorf("got %v, %v", findings, err)
		}
		names := []string{}
		for _, m := range r.all() {
			names = append(names, m.Entry.Service+m.Entry.Annotations["version"])
		}
		slices.Sort(names)
		if diff := cmp.Diff([]string{"changes2", "new", "stays"}, names); diff != "" {
			t.Error(diff)
		}
	})
}

func TestEmbedded_HealsAStoreThatGaveUp(t *testing.T) {
	virtually(t, func(t *testing.T) {
		e := embedded(t, registration.EmbeddedOptions{})
		conn := connect(t, registration.ConnectOptions{Embedded: e})
		s := registration.NewStream(conn, registration.StreamOptions{Heal: e.Heal, Logger: quiet()})
		running(t, s.Run)
		k := registration.NewKeeper(registration.NewJetStream(s, "uid-1"), registration.KeeperOptions{Origin: "uid-1", Logger: quiet()})
		running(t, k.Run)
		k.Replace(wanted(entry("a", "10.0.0.1", 80, time.Hour)))
		wait(t, k)
		if err := e.GiveUp(); err != nil {
			t.Fatal(err)
		}
		k.Set(wanted(entry("b", "10.0.0.1", 80, time.Hour)))
		time.Sleep(time.Minute)
		wait(t, k)
		if got := live(t, s); len(got) != 2 {
			t.Errorf("the feed holds %v", got)
		}
	})
}
