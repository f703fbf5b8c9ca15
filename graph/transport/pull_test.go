package transport_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/transport"
)

// InstanceLogs is a subscription whose resolver makes the events itself; the id says how.
func (s subscriptions) InstanceLogs(ctx context.Context, id string, _ *string, _ *int, _ *bool) (<-chan *muster.LogPiece, error) {
	s.f.resolved.Add(1)
	kind, number, _ := strings.Cut(id, " ")
	switch kind {
	case "refused":
		return nil, muster.InvalidField("id", "it is not served here")
	case "panics":
		panic("secret")
	case "plain": // a channel that knows nothing of Produce
		events := make(chan *muster.LogPiece, 1)
		events <- &muster.LogPiece{Text: "1"}
		close(events)
		return events, nil
	}
	return transport.Produce(ctx, func(ctx context.Context, yield func(*muster.LogPiece) error) error {
		s.f.producing.Add(1)
		defer s.f.producing.Add(-1)
		text := ""
		if kind == "flood" {
			text = strings.Repeat("x", 64<<10)
		}
		for n := int64(1); ; n++ {
			if fmt.Sprint(n) > number && number != "" {
				break
			}
			if err := yield(&muster.LogPiece{Offset: n, Text: text}); err != nil {
				return err
			}
			s.f.produced.Add(1)
		}
		switch kind {
		case "fails":
			return muster.Errorf(muster.Unavailable, "the node is away")
		case "breaks":
			return errors.New("SELECT secret")
		case "shatters":
			panic("secret")
		}
		return nil
	}), nil
}

// producers counts what the resolvers above do.
type producers struct{ producing, produced atomic.Int64 }

func (c *client) logs(op, id string) {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"id":%q,"type":"subscribe","payload":{"query":"subscription($id: ID!) { instanceLogs(id: $id, follow: true) { offset text } }","variables":{"id":%q}}}`, op, id))
}

func TestPull_Ends(t *testing.T) {
	next := func(n int) string {
		return fmt.Sprintf(`{"id":"a","type":"next","payload":{"data":{"instanceLogs":{"offset":%d,"text":""}}}}`, n)
	}
	for name, c := range map[string]struct {
		id   string
		want []string
	}{
		"with its last event":       {"ends 2", []string{next(1), next(2), `{"id":"a","type":"complete"}`}},
		"without events":            {"ends 0", []string{`{"id":"a","type":"complete"}`}},
		"with an error for clients": {"fails 1", []string{next(1), `{"id":"a","type":"error","payload":[{"message":"the node is away","extensions":{"code":"UNAVAILABLE"}}]}`}},
		"with an error of its own":  {"breaks 1", []string{next(1), `{"id":"a","type":"error","payload":[{"message":"internal error`}},
		"with a panic":              {"shatters 1", []string{next(1), `{"id":"a","type":"error","payload":[{"message":"internal error`}},
		"before it began":           {"refused", []string{`{"id":"a","type":"error","payload":[{"message":"id: it is not served here"`}},
		"with a panic before that":  {"panics", []string{`{"id":"a","type":"error","payload":[{"message":"internal error`}},
		"as a channel and no more":  {"plain", []string{`{"id":"a","type":"next","payload":{"data":{"instanceLogs":{"offset":0,"text":"1"}}}}`, `{"id":"a","type":"complete"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, transport.Options{})
			client := f.connect()
			client.logs("a", c.id)
			for _, want := range c.want {
				if got := client.expect(want); strings.Contains(got, "secret") {
					t.Errorf("a client was told %s", got)
				}
			}
			client.logs("a", "ends 1") // the id is free again
			client.expect(next(1))
			client.expect(`{"id":"a","type":"complete"}`)
			within(t, 5*time.Second, "nothing is produced", func() bool { return f.producing.Load() == 0 && f.handler.Stats().Streams == 0 })
		})
	}
}

func TestPull_SharesNothing(t *testing.T) {
	f := newFixture(t, transport.Options{Limits: transport.Limits{Streams: 2}})
	first, second := f.connect(), f.connect()
	first.logs("a", "endless")
	for n := range 3 {
		first.expect(fmt.Sprintf(`{"id":"a","type":"next","payload":{"data":{"instanceLogs":{"offset":%d,`, n+1))
	}
	second.logs("a", "endless")
	second.expect(`{"id":"a","type":"next","payload":{"data":{"instanceLogs":{"offset":1,`)
	if f.resolved.Load() != 2 {
		t.Errorf("the resolver was called %d times for two subscribers", f.resolved.Load())
	}
	third := f.connect()
	third.logs("a", "endless")
	third.expect(`{"id":"a","type":"error","payload":[{"message":"the server has its 2 subscriptions`)
}

func TestPull_ClientCompletes(t *testing.T) {
	f := newFixture(t, transport.Options{})
	c := f.connect()
	c.logs("a", "endless")
	c.expect(`{"id":"a","type":"next"`)
	c.send(`{"id":"a","type":"complete"}`)
	within(t, 5*time.Second, "nothing is produced", func() bool { return f.producing.Load() == 0 && f.handler.Stats().Streams == 0 })
	c.send(`{"type":"ping"}`)
	for c.receive() != `{"type":"pong"}` { // what was under way
	}
}

// TestPull_StalledClient floods one that reads nothing: what it does not take is not made.
func TestPull_StalledClient(t *testing.T) {
	f := newFixture(t, transport.Options{WriteStall: 300 * time.Millisecond})
	c := f.connect()
	c.logs("a", "flood")
	within(t, 20*time.Second, "it is closed", func() bool { return f.handler.Stats().Connections == 0 })
	if made := f.produced.Load() * 64 << 10; made == 0 || made > 16<<20 {
		t.Errorf("%d bytes were made for a client that reads nothing", made)
	}
	if f.producing.Load() != 0 || f.handler.Stats().Stalled != 1 {
		t.Errorf("%d go on; %+v", f.producing.Load(), f.handler.Stats())
	}
}
