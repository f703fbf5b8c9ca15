package registration_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/muster-cloud/muster/registration"
)

// raw is a connection of somebody else to a server that listens, with the token.
func raw(t testing.TB, e *registration.Embedded) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	conn, err := nats.Connect("nats://"+e.Addr(), nats.Token("token"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return conn, js
}

// open starts a server that others reach with "token".
func open(t testing.TB) *registration.Embedded {
	t.Helper()
	return embedded(t, registration.EmbeddedOptions{Listen: "127.0.0.1:0", Token: "token"})
}

// ccmStream is how ccm makes the stream.
func ccmStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "REGISTRATION", Subjects: []string{registration.Prefix + ".>"}, MaxMsgsPerSubject: 1, AllowMsgTTL: true,
		AllowRollup: true, MaxAge: time.Minute, SubjectDeleteMarkerTTL: time.Minute, DenyDelete: true, Replicas: 1,
	}
}

func TestStream_IsMadeAsTheWireSays(t *testing.T) {
	e := open(t)
	_, js := raw(t, e)
	s := registration.NewStream(connect(t, registration.ConnectOptions{Embedded: e}), registration.StreamOptions{Logger: quiet()})
	if repairs, err := s.Ensure(t.Context()); err != nil || !slices.Equal(repairs, []string{"created"}) {
		t.Fatal(repairs, err)
	}
	if repairs, err := s.Ensure(t.Context()); err != nil || len(repairs) != 0 {
		t.Fatal(repairs, err)
	}
	found, err := js.Stream(t.Context(), "REGISTRATION")
	if err != nil {
		t.Fatal(err)
	}
	c := found.CachedInfo().Config
	if !slices.Equal(c.Subjects, []string{"choria.ccm.registration.v1.>"}) || c.Retention != jetstream.LimitsPolicy || c.MaxMsgsPerSubject != 1 ||
		!c.AllowMsgTTL || !c.AllowRollup || !c.DenyDelete || c.DenyPurge || c.Replicas != 1 || c.MaxAge != 24*time.Hour ||
		c.SubjectDeleteMarkerTTL != 24*time.Hour || c.Storage != jetstream.FileStorage || c.Discard != jetstream.DiscardOld || !c.AllowDirect {
		t.Errorf("got %+v", c)
	}
}

func TestStream_RepairsWhatOthersMadeOfIt(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(*jetstream.StreamConfig)
		opts registration.StreamOptions
		want []string
	}{
		{"as ccm makes it", func(*jetstream.StreamConfig) {}, registration.StreamOptions{}, []string{"allow_direct"}},
		{"no TTL", func(c *jetstream.StreamConfig) { c.AllowMsgTTL, c.SubjectDeleteMarkerTTL = false, 0 }, registration.StreamOptions{}, []string{"allow_msg_ttl", "allow_direct", "subject_delete_marker_ttl"}},
		{"no rollup", func(c *jetstream.StreamConfig) {
			c.AllowRollup, c.SubjectDeleteMarkerTTL, c.DenyDelete = false, 0, false
		}, registration.StreamOptions{}, []string{"allow_rollup_hdrs", "allow_direct", "deny_delete", "subject_delete_marker_ttl"}},
		{"many messages of a subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 }, registration.StreamOptions{}, []string{"max_msgs_per_subject", "allow_direct"}},
		{"only one cluster", func(c *jetstream.StreamConfig) { c.Subjects = []string{registration.Prefix + ".prod.>", "other"} }, registration.StreamOptions{}, []string{"subjects", "allow_direct"}},
		{"no age", func(c *jetstream.StreamConfig) { c.MaxAge = 0 }, registration.StreamOptions{}, []string{"allow_direct", "max_age", "subject_delete_marker_ttl"}},
		{"an age that is set", func(*jetstream.StreamConfig) {}, registration.StreamOptions{MaxAge: time.Hour}, []string{"allow_direct", "max_age", "subject_delete_marker_ttl"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := open(t)
			_, js := raw(t, e)
			config := ccmStream()
			c.make(&config)
			if _, err := js.CreateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			c.opts.Logger = quiet()
			s := registration.NewStream(connect(t, registration.ConnectOptions{Embedded: e}), c.opts)
			if repairs, err := s.Ensure(t.Context()); err != nil || !slices.Equal(repairs, c.want) {
				t.Errorf("got %q, %v, want %q", repairs, err, c.want)
			}
			if repairs, err := s.Ensure(t.Context()); err != nil || len(repairs) != 0 {
				t.Errorf("again: %q, %v", repairs, err)
			}
		})
	}
}

func TestStream_NamesWhatItCannotRepair(t *testing.T) {
	e := open(t)
	_, js := raw(t, e)
	conn := connect(t, registration.ConnectOptions{Embedded: e})
	config := ccmStream()
	config.Name = "OTHER"
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s := registration.NewStream(conn, registration.StreamOptions{Logger: quiet()})
	if _, err := s.Ensure(t.Context()); err == nil || !contains(err, "OTHER") {
		t.Errorf("got %v, which should name the other stream", err)
	}
	s = registration.NewStream(conn, registration.StreamOptions{Name: "OTHER", Replicas: 3, Logger: quiet()})
	for _, repairs := range [][]string{{"allow_direct"}, nil} { // what can be repaired is
		if got, err := s.Ensure(t.Context()); !slices.Equal(got, repairs) || !contains(err, "1 of 3 replicas") || !contains(err, "lower registration-replicas to 1") {
			t.Errorf("got %v, %v, which should name the replicas", got, err)
		}
	}
}

func TestStreamOptions_Validate(t *testing.T) {
	for _, o := range []registration.StreamOptions{{Replicas: 6}, {Replicas: -1}, {MaxAge: time.Millisecond}, {Name: "a.b"}, {Name: "a b"}} {
		if o.Validate() == nil {
			t.Errorf("%+v passes", o)
		}
	}
	if err := (&registration.StreamOptions{Replicas: 5, MaxAge: time.Hour, Name: "X"}).Validate(); err != nil {
		t.Error(err)
	}
}

// A stream whose messages could not expire expires them once it is repaired, and leaves
// the marker.
func TestStream_ExpiresAfterItsRepair(t *testing.T) {
	virtually(t, func(t *testing.T) {
		e := embedded(t, registration.EmbeddedOptions{})
		js := connect(t, registration.ConnectOptions{Embedded: e}).JetStream()
		config := ccmStream()
		config.AllowMsgTTL, config.SubjectDeleteMarkerTTL = false, 0
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		s := registration.NewStream(connect(t, registration.ConnectOptions{Embedded: e}), registration.StreamOptions{MaxAge: time.Hour, Logger: quiet()})
		if _, err := s.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := entry("web", "10.0.0.5", 80, 5*time.Second)
		pub := registration.NewJetStream(s, "uid")
		if _, err := pub.Publish(t.Context(), r, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Second)
		held, err := registration.Held(t.Context(), s)
		if err != nil || len(held) != 1 || held[0].Gone != registration.Expired {
			t.Errorf("got %+v, %v", held, err)
		}
	})
}

func TestStream_RunTellsOfEachTurn(t *testing.T) {
	virtually(t, testTurns)
}

func testTurns(t *testing.T) {
	conn := connect(t, registration.ConnectOptions{Embedded: embedded(t, registration.EmbeddedOptions{})})
	js := conn.JetStream()
	states := make(chan registration.State, 10)
	s := registration.NewStream(conn, registration.StreamOptions{
		CheckEvery: time.Hour, Logger: quiet(), OnState: func(s registration.State) { states <- s },
	})
	running(t, s.Run)
	if got := <-states; !got.Up || s.State() != got {
		t.Errorf("got %+v", got)
	}
	if err := js.DeleteStream(t.Context(), "REGISTRATION"); err != nil {
		t.Fatal(err)
	}
	config := ccmStream()
	config.Name = "OTHER"
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.Kick()
	if got := <-states; got.Up || got.Reason == "" {
		t.Errorf("got %+v", got)
	}
	if err := js.DeleteStream(t.Context(), "OTHER"); err != nil {
		t.Fatal(err)
	}
	s.Kick()
	if got := <-states; !got.Up {
		t.Errorf("got %+v", got)
	}
}

func TestPublisher_LateMessagesChangeNothing(t *testing.T) {
	s, _ := stream(t, registration.StreamOptions{})
	pub := registration.NewJetStream(s, "uid")
	r := entry("web", "10.0.0.5", 80, time.Hour)
	subject := registration.Subject(r)
	first, err := pub.Publish(t.Context(), r, 0)
	if err != nil {
		t.Fatal(err)
	}
	marker, err := pub.Remove(t.Context(), subject, first)
	if err != nil {
		t.Fatal(err)
	}
	// The refresh that was sent before the removal arrives after it, and so does the first.
	for _, after := range []uint64{first, 0} {
		if _, err := pub.Publish(t.Context(), r, after); !errors.Is(err, registration.ErrOvertaken) {
			t.Errorf("after %d: got %v", after, err)
		}
	}
	if _, err := pub.Publish(t.Context(), r, marker); err != nil {
		t.Error(err)
	}
	// A removal that comes late neither.
	if _, err := pub.Remove(t.Context(), subject, first); !errors.Is(err, registration.ErrOvertaken) {
		t.Errorf("got %v", err)
	}
}

func TestPublisher_Kinds(t *testing.T) {
	e := open(t)
	other, _ := raw(t, e)
	sub, err := other.SubscribeSync(registration.Prefix + ".>")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, registration.ConnectOptions{Embedded: e})
	r := entry("web", "10.0.0.5", 80, time.Hour)
	for _, pub := range []registration.Publisher{registration.NewNoop(), registration.NewPlain(conn)} {
		if _, err := pub.Publish(t.Context(), r, 0); err != nil {
			t.Error(pub.Kind(), err)
		}
		if _, err := pub.Remove(t.Context(), registration.Subject(r), 0); err != nil {
			t.Error(pub.Kind(), err)
		}
	}
	published, err := sub.NextMsg(5 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	data, _ := registration.Encode(r)
	if published.Subject != registration.Subject(r) || string(published.Data) != string(data) || len(published.Header) != 0 {
		t.Errorf("got %+v", published)
	}
	removed, err := sub.NextMsg(5 * time.Second)
	if err != nil || len(removed.Data) != 0 || removed.Header.Get("Nats-Marker-Reason") != "Remove" {
		t.Errorf("got %+v, %v", removed, err)
	}
}

func TestPublisher_HeadersAreThoseOfTheWire(t *testing.T) {
	e := open(t)
	_, js := raw(t, e)
	s := registration.NewStream(connect(t, registration.ConnectOptions{Embedded: e}), registration.StreamOptions{Logger: quiet()})
	if _, err := s.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	pub := registration.NewJetStream(s, "uid-1")
	var last uint64
	for _, v := range vectors() {
		subject := registration.Prefix + "." + v.subject
		after := uint64(0)
		if v.name == "annotations" { // the same entry as the first
			after = 1
		}
		seq, err := pub.Publish(t.Context(), &v.entry, after)
		if err != nil {
			t.Fatal(v.name, err)
		}
		msg, err := mustStream(t, js).GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		ttl := ""
		if v.entry.TTL != nil {
			ttl = map[string]string{"IPv4": "5m0s", "IPv6": "1m30s", "never": "never", "IPv4 in IPv6": "24h0m0s"}[v.name]
		}
		if msg.Subject != subject || string(msg.Data) != v.payload || msg.Header.Get("Nats-TTL") != ttl ||
			msg.Header.Get("Nats-Rollup") != "sub" || msg.Header.Get("Muster-Origin") != "uid-1" {
			t.Errorf("%s: got %s %q %s, want TTL %q", v.name, msg.Subject, msg.Header, msg.Data, ttl)
		}
		last = seq
	}
	r := vectors()[6].entry
	seq, err := pub.Remove(t.Context(), registration.Subject(&r), last)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := mustStream(t, js).GetMsg(t.Context(), seq)
	if err != nil || len(msg.Data) != 0 || msg.Header.Get("Nats-Marker-Reason") != "Remove" || msg.Header.Get("Nats-Rollup") != "sub" || msg.Header.Get("Nats-TTL") != "24h0m0s" {
		t.Errorf("got %+v, %v", msg, err)
	}
}

func mustStream(t testing.TB, js jetstream.JetStream) jetstream.Stream {
	t.Helper()
	s, err := js.Stream(t.Context(), "REGISTRATION")
	if err != nil {
		t.Fatal(err)
	}
	return s
}
