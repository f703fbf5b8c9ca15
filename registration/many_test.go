package registration_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/muster-cloud/muster/registration"
)

func manyDesired(n int) desired {
	all := desired{}
	for i := range n {
		e := entry(fmt.Sprintf("s%d", i%100), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), 80, time.Minute)
		all[registration.Subject(e)] = e
	}
	return all
}

// 10,000 entries take no goroutine each, are all refreshed in time, and are all seen.
func TestFeed_TenThousandEntries(t *testing.T) {
	virtually(t, func(t *testing.T) {
		f, r, _ := opened(t, registration.FeedOptions{})
		all := manyDesired(10_000)
		f.Replace(all)
		most := 0
		for f.Wait(ended(t)) != nil {
			most = max(most, runtime.NumGoroutine())
			time.Sleep(time.Millisecond)
		}
		r.until(t, "all are seen", func(r *recorder) bool { return len(r.there) == len(all) })
		time.Sleep(time.Minute)
		c := f.Counts()
		if c.Publishes != len(all) || c.Refreshes < 3*len(all) || c.Refreshes > 4*len(all) || c.Overtaken != 0 || c.Disputes != 0 {
			t.Errorf("got %+v", c)
		}
		if most > 200 {
			t.Errorf("%d goroutines", most)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.there) != len(all) {
			t.Errorf("%d are there", len(r.there))
		}
	})
}

func BenchmarkFeed_Publish1000(b *testing.B) {
	all := manyDesired(1000)
	for b.Loop() {
		f, _, stop := opened(b, registration.FeedOptions{})
		f.Replace(all)
		if err := f.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
		stop()
	}
}
