package transport_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
	"github.com/muster-cloud/muster/graph/transport"
	"github.com/muster-cloud/muster/registry/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	epoch       = "00000000000000aa"
	nodeChanges = `subscription Watch($since: Cursor, $initial: Boolean) { nodeChanges(since: $since, initial: $initial) { type cursor revision left node { id status labels } } }`
)

// fixture is a server whose resolvers are made for tests: it serves the hub over a
// log in memory.
type fixture struct {
	t        testing.TB
	hub      *watch.Hub
	handler  *transport.Handler
	server   *httptest.Server
	log      *memory
	resolved atomic.Int64 // subscriptions
	producers
	release chan struct{}
}

// newFixture starts a server, and ends it and all of its connections after the test.
func newFixture(t testing.TB, o transport.Options) *fixture {
	t.Helper()
	f := &fixture{t: t, log: &memory{}, release: make(chan struct{})}
	f.hub = watch.New(f.log, watch.Options{RingSize: 256})
	f.hub.Reset(epoch, muster.Position{}, muster.Position{})
	f.handler = transport.New(generated.NewExecutableSchema(generated.Config{
		Resolvers: f,
		Directives: generated.DirectiveRoot{Auth: func(ctx context.Context, _ any, next graphql.Resolver, requires muster.Access) (any, error) {
			if !muster.PrincipalOf(ctx).Allows(requires) {
				return nil, muster.Errorf(muster.Forbidden, "the role %s is needed", requires)
			}
			return next(ctx)
		}},
	}), f.hub, o)
	f.server = httptest.NewServer(f.handler)
	t.Cleanup(func() {
		f.server.Close()
		if err := f.handler.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		f.server.Client().CloseIdleConnections()
	})
	return f
}

// change commits and announces count changes of one node.
func (f *fixture) change(count int) { f.hub.Publish(f.log.write(muster.KindNode, count)) }

// changeCluster makes changes that no watcher of nodes is told of.
func (f *fixture) changeCluster(count int) { f.hub.Publish(f.log.write(muster.KindCluster, count)) }

// memory is a log in memory.
type memory struct {
	mu    sync.Mutex
	rows  []muster.Change
	floor int64
}

func (m *memory) write(kind muster.ChangeKind, count int) []*muster.Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	var written []*muster.Change
	for range count {
		revision := int64(len(m.rows) + 1)
		c := muster.Change{
			Revision: revision, Epoch: epoch, Batch: fmt.Sprintf("%016x", revision), At: time.Unix(revision, 0),
			Kind: kind, ObjectID: "n1", Status: string(muster.Healthy),
			Node: &muster.Node{ID: "n1", Status: muster.Healthy, Labels: muster.Map{"zone": "a"}, Revision: revision},
		}
		if err := c.Encode(); err != nil {
			panic(err)
		}
		m.rows = append(m.rows, c)
		written = append(written, &c)
	}
	return written
}

func (m *memory) ChangesAfter(_ context.Context, after int64, limit int) ([]*muster.Change, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []*muster.Change
	for i := max(after, m.floor); i < int64(len(m.rows)) && len(found) < limit; i++ {
		row := m.rows[i]
		row.Node = nil
		found = append(found, &row)
	}
	return found, nil
}

func (m *memory) PositionAt(_ context.Context, revision int64) (muster.Position, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision <= m.floor || revision > int64(len(m.rows)) {
		return muster.Position{}, false, nil
	}
	return muster.Position{Revision: revision, Tag: m.rows[revision-1].Batch}, true, nil
}

// The resolvers. What is not set panics when it is asked for, which is a test too.

func (f *fixture) Instance() generated.InstanceResolver         { return nil }
func (f *fixture) Service() generated.ServiceResolver           { return nil }
func (f *fixture) Registration() generated.RegistrationResolver { return nil }
func (f *fixture) AccessKey() generated.AccessKeyResolver       { return nil }
func (f *fixture) JoinToken() generated.JoinTokenResolver       { return nil }
func (f *fixture) Volume() generated.VolumeResolver             { return nil }
func (f *fixture) Node() generated.NodeResolver                 { return nodes{f: f} }
func (f *fixture) Query() generated.QueryResolver               { return queries{f: f} }
func (f *fixture) Mutation() generated.MutationResolver         { return mutations{f: f} }
func (f *fixture) Subscription() generated.SubscriptionResolver {
	return subscriptions{f: f}
}

type nodes struct {
	generated.NodeResolver
	f *fixture
}

func (nodes) LastSeen(context.Context, *muster.Node) (*time.Time, error) { return nil, nil }

func (nodes) Changes(context.Context, *muster.Node, *int) ([]*muster.Change, error) {
	return nil, errors.New("SELECT secret FROM changes")
}

type queries struct {
	generated.QueryResolver
	f *fixture
}

func (queries) ServerInfo(context.Context) (*muster.ServerInfo, error) {
	return &muster.ServerInfo{Version: "1.2.3"}, nil
}

func (q queries) Node(ctx context.Context, id string) (*muster.Node, error) {
	switch id {
	case "boom":
		return nil, errors.New("SELECT secret FROM nodes: disk I/O error")
	case "panic":
		panic("secret")
	case "gone":
		return nil, fmt.Errorf("wrapped: %w", muster.Errorf(muster.NotFound, "no node gone; list them with nodes"))
	case "slow":
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.f.release:
		}
	}
	return &muster.Node{ID: muster.NodeID(id), Status: muster.Healthy}, nil
}

func (queries) Nodes(context.Context, *muster.NodeFilter, *int, *string) (*muster.NodeConnection, error) {
	return &muster.NodeConnection{PageInfo: &muster.PageInfo{}, Count: func() int { return 0 }}, nil
}

type mutations struct {
	generated.MutationResolver
	f *fixture
}

func (mutations) Heartbeat(context.Context, muster.HeartbeatInput) (*muster.Beat, error) {
	return &muster.Beat{NextBeatIn: 10 * time.Second, Epoch: epoch, DesiredRevision: 7}, nil
}

func (mutations) ReportInstances(_ context.Context, input muster.ReportInstancesInput) (*generated.ReportInstancesPayload, error) {
	return &generated.ReportInstancesPayload{Remove: []string{}, Revision: int64(len(input.Instances))}, nil
}

func (mutations) CordonNode(_ context.Context, input generated.CordonNodeInput) (*generated.CordonNodePayload, error) {
	return nil, muster.InvalidField("reason", "%q is not one", *input.Reason)
}

type subscriptions struct {
	generated.SubscriptionResolver
	f *fixture
}

func (s subscriptions) NodeChanges(ctx context.Context, since *muster.Cursor, initial *bool, filter *muster.NodeFilter) (<-chan *muster.Event, error) {
	s.f.resolved.Add(1)
	if filter != nil && filter.Role != nil {
		return nil, muster.InvalidField("filter.role", "it is not served here")
	}
	spec := watch.Spec{
		Match: func(c *muster.Change) (bool, bool) { return c.Kind == muster.KindNode, false },
		Snapshot: func() (muster.Position, func() (*muster.Change, bool)) {
			at, left := s.f.hub.Head(), 2
			return at, func() (*muster.Change, bool) {
				left--
				id := fmt.Sprintf("p%d", left)
				return &muster.Change{
					Revision: at.Revision, At: time.Unix(1, 0), Kind: muster.KindNode, ObjectID: id,
					Node: &muster.Node{ID: muster.NodeID(id), Status: muster.Healthy},
				}, left >= 0
			}
		},
	}
	return s.f.hub.Serve(ctx, spec, watch.Request{Since: since, Initial: initial == nil || *initial})
}

// client is a WebSocket client that speaks raw messages.
type client struct {
	t  testing.TB
	ws *websocket.Conn
}

// dial connects without an init.
func (f *fixture) dial() *client {
	f.t.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}, ReadBufferSize: 1024, WriteBufferSize: 1024, TLSClientConfig: f.trust()}
	ws, response, err := dialer.Dial(f.wsURL(), nil)
	if err != nil {
		f.t.Fatalf("dial: %v", err)
	}
	_ = response.Body.Close()
	c := &client{t: f.t, ws: ws}
	f.t.Cleanup(func() { _ = ws.Close() })
	return c
}

// secure goes on by TLS.
func (f *fixture) secure() {
	f.server.Close()
	f.server = httptest.NewTLSServer(f.handler)
}

// trust is how clients take the server, by TLS.
func (f *fixture) trust() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// bothWays runs a test with plain connections and by TLS.
func bothWays(t *testing.T, o transport.Options, test func(t *testing.T, f *fixture)) {
	t.Helper()
	t.Run("plain", func(t *testing.T) { test(t, newFixture(t, o)) })
	t.Run("TLS", func(t *testing.T) {
		f := newFixture(t, o)
		f.secure()
		test(t, f)
	})
}

func (f *fixture) wsURL() string { return "ws" + strings.TrimPrefix(f.server.URL, "http") }

// connect connects and is acknowledged.
func (f *fixture) connect() *client {
	f.t.Helper()
	c := f.dial()
	c.send(`{"type":"connection_init"}`)
	c.expect(`{"type":"connection_ack"}`)
	return c
}

func (c *client) send(text string) {
	c.t.Helper()
	if err := c.ws.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		c.t.Fatalf("send %.80s: %v", text, err)
	}
}

// receive returns the next message, or the close frame as "close 4400 reason".
func (c *client) receive() string {
	c.t.Helper()
	_ = c.ws.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, b, err := c.ws.ReadMessage()
	if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
		return fmt.Sprintf("close %d %s", closed.Code, closed.Text)
	}
	if err != nil {
		return "error " + err.Error()
	}
	return string(b)
}

func (c *client) expect(prefix string) string {
	c.t.Helper()
	got := c.receive()
	if !strings.HasPrefix(got, prefix) {
		c.t.Fatalf("got  %s\nwant %s", got, prefix)
	}
	return got
}

// within waits until a condition holds that a real process brings about.
func within(t testing.TB, d time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s still not: %s", d, what)
		}
	}
}
