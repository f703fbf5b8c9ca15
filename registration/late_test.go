package registration_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

// late is a Publisher whose first message is given up, and arrives when it is told to.
type late struct {
	registration.Publisher
	mu     sync.Mutex
	arrive func() error // nil: nothing was sent yet
}

func (l *late) Publish(ctx context.Context, r *muster.Registration, after uint64) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.arrive != nil {
		return l.Publisher.Publish(ctx, r, after)
	}
	l.arrive = func() error {
		_, err := l.Publisher.Publish(context.Background(), r, after)
		return err
	}
	return 0, fmt.Errorf("%w: timeout", registration.ErrUnavailable)
}

// A publication of which nobody knows what became is stopped by a marker, even where nothing is there to remove.
func TestKeeper_StopsWhatIsOnItsWay(t *testing.T) {
	virtually(t, func(t *testing.T) {
		s, _ := stream(t, registration.StreamOptions{})
		pub := &late{Publisher: registration.NewJetStream(s, "uid-1")}
		k := registration.NewKeeper(pub, registration.KeeperOptions{Origin: "uid-1", MaxAge: s.MaxAge, Logger: quiet()})
		running(t, k.Run)
		r := entry("a", "10.0.0.1", 80, time.Minute)
		k.Set(wanted(r))
		synctest.Wait()
		k.Set(desired{registration.Subject(r): nil})
		wait(t, k)
		if err := pub.arrive(); !errors.Is(err, registration.ErrOvertaken) {
			t.Errorf("what comes late gets %v", err)
		}
		if got, c := live(t, s), k.Counts(); len(got) != 0 || c.Markers != 1 {
			t.Errorf("the feed holds %v; %+v", got, c)
		}
	})
}
