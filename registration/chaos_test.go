package registration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

// unreliable is a Publisher on a bad network: messages are lost, acknowledgements are lost, and
// some messages arrive long after they were given up.
type unreliable struct {
	registration.Publisher
	mu   sync.Mutex
	rand *rand.Rand
	bad  bool
	late sync.WaitGroup
}

func (u *unreliable) set(bad bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bad = bad
}

func (u *unreliable) fate() (n int, delay time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.bad {
		return 0, 0
	}
	return u.rand.IntN(6), time.Duration(u.rand.IntN(60)) * time.Second
}

func (u *unreliable) do(write func(context.Context) (uint64, error)) (uint64, error) {
	lost := fmt.Errorf("%w: timeout", registration.ErrUnavailable)
	switch n, delay := u.fate(); n {
	case 1:
		return 0, lost
	case 2:
		_, _ = write(context.Background())
		return 0, lost
	case 3:
		u.late.Go(func() {
			time.Sleep(delay)
			_, _ = write(context.Background())
		})
		return 0, lost
	default:
		return write(context.Background())
	}
}

func (u *unreliable) Publish(_ context.Context, r *muster.Registration, after uint64) (uint64, error) {
	return u.do(func(ctx context.Context) (uint64, error) { return u.Publisher.Publish(ctx, r, after) })
}

func (u *unreliable) Remove(_ context.Context, subject string, after uint64) (uint64, error) {
	return u.do(func(ctx context.Context) (uint64, error) { return u.Publisher.Remove(ctx, subject, after) })
}

// Whatever the network does, and whatever others do, once both have calmed down the feed is what is
// desired, and stays so.
func TestFeed_ConvergesAfterChaos(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			virtually(t, func(t *testing.T) { chaos(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func chaos(t *testing.T, r *rand.Rand) {
	e := embedded(t, registration.EmbeddedOptions{})
	conn := connect(t, registration.ConnectOptions{Embedded: e})
	s := registration.NewStream(conn, registration.StreamOptions{Heal: e.Heal, Logger: quiet()})
	ours := &unreliable{Publisher: registration.NewJetStream(s, "uid-1"), rand: rand.New(rand.NewPCG(r.Uint64(), 2)), bad: true}
	theirs := registration.NewJetStream(s, "uid-2")
	k := registration.NewKeeper(ours, registration.KeeperOptions{Origin: "uid-1", Logger: quiet()})
	seen := newRecorder()
	m := registration.NewMirror(s, registration.Both(k, seen), registration.MirrorOptions{Logger: quiet()})
	registration.Join(m, k)
	running(t, s.Run)
	running(t, k.Run)
	running(t, m.Run)
	time.Sleep(time.Second)

	all := desired{}
	for range 150 {
		name := fmt.Sprintf("s%d", r.IntN(6))
		e1 := entry(name, "10.0.0.1", 80, []time.Duration{0, 5 * time.Second, time.Minute, muster.RegistrationTTLForever}[r.IntN(4)])
		subject := registration.Subject(e1)
		switch r.IntN(12) {
		case 0, 1, 2, 3:
			e1.Priority = 1 + r.IntN(3)
			all[subject] = e1
			k.Set(desired{subject: e1})
		case 4, 5, 6:
			delete(all, subject)
			k.Set(desired{subject: nil})
		case 7:
			if found, err := conn.JetStream().Stream(t.Context(), "REGISTRATION"); err == nil {
				_ = found.Purge(t.Context(), jetstream.WithPurgeSubject(subject))
			}
		case 8:
			if last, err := theirs.Last(t.Context(), subject); err == nil && last != nil {
				_, _ = theirs.Publish(t.Context(), e1, last.Sequence)
			}
		case 9:
			if r.IntN(4) == 0 {
				e.Stop()
			}
		case 10:
			if r.IntN(4) == 0 {
				_ = conn.JetStream().DeleteStream(t.Context(), "REGISTRATION")
			}
		}
		time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
	}
	ours.set(false)
	ours.late.Wait()
	time.Sleep(2 * time.Minute) // disputes are settled after 30 s
	wait(t, k)
	check := func(when string) {
		t.Helper()
		findings, err := k.Verify(t.Context(), s, false)
		if err != nil || len(findings) != 0 {
			t.Errorf("%s: %v, %v; %+v", when, findings, err, k.Counts())
		}
		there := live(t, s)
		for subject := range all {
			if there[subject] == nil {
				t.Errorf("%s: %s is missing", when, subject)
			}
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if len(seen.there) != len(there) {
			t.Errorf("%s: the mirror has %d, the stream %d", when, len(seen.there), len(there))
		}
	}
	check("at once")
	time.Sleep(time.Hour)
	check("an hour later")
}
