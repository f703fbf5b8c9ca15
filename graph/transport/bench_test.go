package transport_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/muster-cloud/muster/graph/transport"
	"github.com/muster-cloud/muster/graph/transport/audit"
)

// BenchmarkDelivery1000 delivers each change to 1,000 identical subscribers on
// their own connections. The figures are for one delivery, the clients' share of
// the work included.
func BenchmarkDelivery1000(b *testing.B) {
	const subscribers = 1000
	f := newFixture(b, transport.Options{})
	f.change(1)
	var got sync.WaitGroup
	for range subscribers {
		c := f.connect()
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
				got.Done()
			}
		}()
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	executions := f.handler.Stats().Executions
	for b.Loop() {
		got.Add(subscribers)
		f.change(1)
		got.Wait()
	}
	runtime.ReadMemStats(&after)
	deliveries := float64(b.N * subscribers)
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/deliveries, "allocs/delivery")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/deliveries, "ns/delivery")
	b.ReportMetric(float64(f.handler.Stats().Executions-executions)/float64(b.N), "executions/change")
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
