package transport

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

// groupKey is what subscriptions have in common that share their execution: the
// document, the operation in it, its variables without the personal ones, and what
// the caller may do.
type groupKey struct {
	document  *ast.QueryDocument
	operation string
	variables string
	scope     string
}

// payloadKey names an encoded event. An object that is present, SYNCED and PROGRESS
// are shared for a second: what they tell is of the moment.
type payloadKey struct {
	group  uint64
	kind   muster.EventType
	at     muster.Position // with its tag: another history has the same numbers
	second int64
	object string
}

// payloadOverhead is what a kept payload weighs beside its bytes.
const payloadOverhead = 256

// groups are the shared executions.
type groups struct {
	h *Handler

	mu    sync.Mutex
	byKey map[groupKey]*group
	next  uint64
}

// group is one execution of a subscription for all its members.
type group struct {
	h       *Handler
	key     groupKey
	id      uint64
	members int // under groups.mu

	started sync.Once
	cancel  context.CancelFunc
	errs    gqlerror.List // why it did not start
	stream  *watch.Stream
	scan    *watch.Scan

	mu      sync.Mutex // one event at a time
	respond func() *graphql.Response
	broken  bool
}

// member is one subscription in a group.
type member struct {
	op       *operation
	group    *group
	follower *watch.Follower
	left     sync.Once
}

func newGroups(h *Handler) *groups { return &groups{h: h, byKey: map[groupKey]*group{}} }

func (g *groups) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.byKey)
}

// join makes a subscription a member of its group, which it starts when it is the
// first. The errors say why not.
func (g *groups) join(ctx context.Context, operation *graphql.OperationContext) (*member, gqlerror.List) {
	if e := g.h.admitStream(); e != nil {
		return nil, g.h.failure(ctx, e)
	}
	request, err := g.h.personal(operation)
	if err != nil {
		g.h.count.streams.Add(-1)
		return nil, g.h.failure(ctx, err)
	}
	m := &member{group: g.enter(ctx, operation)}
	m.group.started.Do(func() { m.group.start(ctx, operation) })
	if m.group.errs != nil {
		m.leave()
		return nil, m.group.errs
	}
	if m.follower, err = m.group.scan.Follow(ctx, request); err != nil {
		m.leave()
		return nil, g.h.failure(ctx, err)
	}
	return m, nil
}

// admitStream makes room for a subscription.
func (h *Handler) admitStream() *muster.Error {
	most := h.options.Limits.Streams
	if h.count.streams.Add(1) > int64(most) {
		h.count.streams.Add(-1)
		return h.refuse("streams", "the server has its %d subscriptions; complete some or try again later", most)
	}
	return nil
}

// enter finds or makes the group of an operation and counts one member more.
func (g *groups) enter(ctx context.Context, operation *graphql.OperationContext) *group {
	key := groupKey{
		document:  operation.Doc,
		operation: operation.OperationName,
		scope:     scopeOf(muster.PrincipalOf(ctx)),
	}
	if shared, ok := g.h.documents.get(operation.RawQuery); ok {
		key.document = shared // the same text may have been parsed by two at the same moment
	}
	if len(operation.Variables) > 0 {
		b, _ := json.Marshal(operation.Variables) // it came as JSON
		key.variables = string(b)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	shared := g.byKey[key]
	if shared == nil {
		g.next++
		shared = &group{h: g.h, key: key, id: g.next, cancel: func() {}}
		g.byKey[key] = shared
	}
	shared.members++
	return shared
}

// leave gives a membership up; the last one ends the group.
func (m *member) leave() {
	m.left.Do(func() {
		m.group.h.count.streams.Add(-1)
		m.group.h.groups.exit(m.group)
	})
}

func (g *groups) exit(shared *group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if shared.members--; shared.members == 0 {
		g.forgetLocked(shared)
		shared.cancel()
	}
}

// forget keeps new members away from a group that cannot go on.
func (g *groups) forget(shared *group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forgetLocked(shared)
}

func (g *groups) forgetLocked(shared *group) {
	if g.byKey[shared.key] == shared {
		delete(g.byKey, shared.key)
	}
}

// scopeOf is what a caller may see, as text: callers of the same may share.
func scopeOf(p muster.Principal) string {
	b, _ := json.Marshal(p.Scope) // strings
	return string(p.Role) + string(p.NodeUID) + string(b)
}

// anyOf is a caller that stands for all of the same scope.
func anyOf(p muster.Principal) muster.Principal {
	return muster.Principal{Name: "shared", Role: p.Role, Scope: p.Scope, NodeUID: p.NodeUID}
}

type callerKey struct{}

// Caller is whose call it is that a field is executed for at first: of a subscription that
// is shared, who began it, while muster.PrincipalOf is no one in particular. It is for
// saying who was refused, and for nothing else.
func Caller(ctx context.Context) muster.Principal {
	if p, ok := ctx.Value(callerKey{}).(muster.Principal); ok {
		return p
	}
	return muster.PrincipalOf(ctx)
}

// personal takes out of an operation where this one subscriber begins.
func (h *Handler) personal(operation *graphql.OperationContext) (watch.Request, error) {
	p := h.guard.planOf(operation)
	request := watch.Request{Initial: true}
	if p.root == nil {
		return request, errors.New("a subscription without a field")
	}
	arguments := p.root.ArgumentMap(operation.Variables)
	if initial, ok := arguments["initial"].(bool); ok {
		request.Initial = initial
	}
	if value := arguments["since"]; value != nil {
		text, _ := value.(string) // anything else is no cursor either
		since, err := muster.ParseCursor(text)
		if err != nil {
			return request, err
		}
		request.Since = &since
	}
	for _, name := range p.personal {
		delete(operation.Variables, name)
	}
	return request, nil
}

// start executes the subscription once: its resolver leaves a Spec in the stream.
// The group's context is its own, with the scope as the caller.
func (g *group) start(from context.Context, operation *graphql.OperationContext) {
	defer func() {
		if v := recover(); v != nil {
			g.errs = g.h.failure(from, recovered(from, v))
		}
		if g.errs != nil {
			g.h.groups.forget(g)
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	g.setCancel(cancel)
	g.stream = watch.NewStream()
	ctx = context.WithValue(ctx, callerKey{}, muster.PrincipalOf(from))
	ctx = muster.WithPrincipal(ctx, anyOf(muster.PrincipalOf(from)))
	ctx = watch.WithStream(graphql.StartOperationTrace(ctx), g.stream)
	respond, ctx := g.h.exec.DispatchOperation(ctx, operation)
	spec, ok := g.stream.Spec()
	if !ok {
		if response := respond(ctx); response != nil {
			g.errs = response.Errors
		}
		if g.errs == nil {
			g.errs = g.h.failure(from, errors.New("the subscription was not served by the hub"))
		}
		return
	}
	g.scan = g.h.hub.Scan(spec)
	g.respond = func() *graphql.Response {
		timed, cancel := context.WithTimeout(ctx, g.h.options.OperationTime)
		defer cancel()
		return respond(timed)
	}
}

func (g *group) setCancel(cancel context.CancelFunc) {
	g.h.groups.mu.Lock()
	defer g.h.groups.mu.Unlock()
	g.cancel = cancel
}

// payload is the encoded event of an item: made by the first member that needs it.
func (g *group) payload(item watch.Item, now time.Time) ([]byte, error) {
	key := payloadKey{group: g.id, kind: item.Type, at: item.Position}
	if item.Type != muster.EventChange {
		key.second = now.Unix()
	}
	if item.Type == muster.EventPresent {
		key.object = item.Change.ObjectID
	}
	if b, ok := g.h.payloads.get(key); ok {
		g.h.count.fromCache.Add(1)
		return b, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if b, ok := g.h.payloads.get(key); ok {
		g.h.count.fromCache.Add(1)
		return b, nil
	}
	b, err := g.execute(item.Event(now))
	if err != nil {
		return nil, err
	}
	switch item.Source {
	case watch.FromRing:
		g.h.count.fromRing.Add(1)
	case watch.FromLog:
		g.h.count.fromLog.Add(1)
	}
	g.h.payloads.put(key, b, len(b)+payloadOverhead)
	return b, nil
}

// execute has gqlgen execute the subscription for one event. After a failure the
// group cannot go on: the event may still be in the stream.
func (g *group) execute(e *muster.Event) (b []byte, err error) {
	if g.broken {
		return nil, errGroupEnded
	}
	defer func() {
		if v := recover(); v != nil {
			err = recovered(context.Background(), v)
		}
		if err != nil {
			g.broken = true
			g.h.groups.forget(g)
		}
	}()
	g.h.count.executions.Add(1)
	g.stream.Feed(e)
	response := g.respond()
	if response == nil {
		return nil, errGroupEnded
	}
	return encode(response), nil
}

var errGroupEnded = errors.New("the subscription's execution has ended")
