package transport_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/muster-cloud/muster/graph/transport"
	"github.com/muster-cloud/muster/graph/transport/audit"
)

// audience is many identical subscribers, each on a connection of its own, who
// read all that they are told.
type audience struct {
	f    *fixture
	size int
	got  sync.WaitGroup
}

func newAudience(t testing.TB, size int) *audience {
	a := &audience{f: newFixture(t, transport.Options{}), size: size}
	a.f.change(1)
	for range size {
		c := a.f.connect()
		c.watch("w", map[string]any{"since": cursorAt(1)})
		c.expect(`{"id":"w","type":"next"`)
		go func() {
			scratch := make([]byte, 4<<10)
			for {
				_, r, err := c.ws.NextReader()
				if err != nil {
					return
				}
				for err == nil {
					_, err = r.Read(scratch)
				}
				a.got.Done()
			}
		}()
	}
	return a
}

// hear makes a change and waits until everybody has been told.
func (a *audience) hear() {
	a.got.Add(a.size)
	a.f.change(1)
	a.got.Wait()
}

// mallocs is how many allocations do makes, in all goroutines.
func mallocs(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

func TestDelivery_AllocatesLittle(t *testing.T) {
	const subscribers, changes = 200, 20
	a := newAudience(t, subscribers)
	a.hear()
	executions := a.f.handler.Stats().Executions
	n := mallocs(func() {
		for range changes {
			a.hear()
		}
	})
	if each := float64(n) / (subscribers * changes); each > 4 {
		t.Errorf("%.1f allocations a delivery, the clients' included; want at most 4", each)
	}
	if got := a.f.handler.Stats().Executions - executions; got != changes {
		t.Errorf("%d executions for %d changes", got, changes)
	}
}

// BenchmarkDelivery1000 is a change told to 1,000 identical subscribers. The
// figures are for one delivery, the clients' share of the work included.
func BenchmarkDelivery1000(b *testing.B) {
	const subscribers = 1000
	a := newAudience(b, subscribers)
	executions := a.f.handler.Stats().Executions
	n := mallocs(func() {
		for b.Loop() {
			a.hear()
		}
	})
	deliveries := float64(b.N * subscribers)
	b.ReportMetric(float64(n)/deliveries, "allocs/delivery")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/deliveries, "ns/delivery")
	b.ReportMetric(float64(a.f.handler.Stats().Executions-executions)/float64(b.N), "executions/change")
}

// BenchmarkBombs is the time that it takes to refuse each bomb.
func BenchmarkBombs(b *testing.B) {
	for _, bomb := range audit.Bombs() {
		b.Run(bomb.Name, func(b *testing.B) {
			h := newFixture(b, transport.Options{}).handler
			for b.Loop() {
				defuse(h, bomb.Body)
			}
		})
	}
}

// BenchmarkBeat is a heartbeat over a connection that stays open.
func BenchmarkBeat(b *testing.B) {
	c := newFixture(b, transport.Options{}).connect()
	beat := `{"id":"b","type":"subscribe","payload":{"query":"mutation($input: HeartbeatInput!) { heartbeat(input: $input) { nextBeatIn epoch desiredRevision } }","variables":{"input":{"uid":"u","incarnation":1}}}}`
	b.ReportAllocs()
	for b.Loop() {
		c.send(beat)
		c.expect(`{"id":"b","type":"next"`)
		c.expect(fmt.Sprintf(`{"id":%q,"type":"complete"`, "b"))
	}
}
