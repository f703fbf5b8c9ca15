package registration_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster/registration"
)

// synced is a buffer for a log.
type synced struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *synced) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *synced) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Split(strings.TrimSpace(s.text.String()), "\n")
}

// What the user may not do is said at once, in the same words for as long as it lasts, and works by
// itself when it may.
func TestFeed_NamesThePermissionThatIsMissing(t *testing.T) {
	const may = `authorization: {users: [{user: us, password: s3cret, permissions: {`
	for _, c := range []struct {
		name, permissions string
		up                bool // it can be read, but not written
		says              string
	}{
		{"entries", `publish: ["$JS.API.>"], subscribe: ">"`, true, "may not publish to choria.ccm.registration.v1.>"},
		{"some entries", `publish: ["$JS.API.>", "choria.ccm.registration.v1.other.>"], subscribe: ">"`, true, "may not publish to choria.ccm.registration.v1.>"},
		{"JetStream", `publish: ["choria.>"], subscribe: ">"`, false, "may not publish to $JS.API.STREAM.INFO;"},
		{"answers", `publish: ">", subscribe: "choria.>"`, false, "may not subscribe to _INBOX.>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNATSD(t).start(t, may+c.permissions+"}}]}")
			log := &synced{}
			f, err := registration.OpenFeed(t.Context(), registration.FeedOptions{
				Origin: "uid-1", Connect: registration.ConnectOptions{URL: "nats://us:s3cret@" + n.addr},
				Stream: registration.StreamOptions{CheckEvery: 100 * time.Millisecond}, Follower: newRecorder(),
				Logger: slog.New(slog.NewTextHandler(log, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
			running(t, f.Run)
			a, b := entry("a", "10.0.0.1", 80, time.Hour), entry("b", "10.0.0.1", 80, time.Hour)
			f.Replace(wanted(a, b))
			said := func() string {
				flaw, _ := f.Flaw()
				return f.State().Reason + flaw
			}
			eventually(t, "it says what is missing", func() bool {
				return f.State().Up == c.up && strings.Contains(said(), c.says) && strings.Contains(said(), "give it publish on")
			})
			began := f.State()
			for range 10 { // checks of the stream
				time.Sleep(100 * time.Millisecond)
				if now := f.State(); now != began || now.Up != c.up {
					t.Errorf("it was %+v and is %+v", began, now)
				}
			}
			if got := log.lines(); len(got) > 6 {
				t.Errorf("the log has %d lines:\n%s", len(got), strings.Join(got, "\n"))
			}
			n.reconfigure(t, may+`publish: ">", subscribe: ">"}}]}`)
			wait(t, f.Keeper)
			eventually(t, "nothing is wrong any more", func() bool { return f.State().Up && said() == "" })
		})
	}
}
