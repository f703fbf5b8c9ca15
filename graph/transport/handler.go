package transport

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/executor"
	"github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2/ast"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

// Handler serves /graphql: GET, POST, and the WebSocket upgrade. Make one with
// New; end it with Shutdown.
type Handler struct {
	options   Options
	exec      *executor.Executor
	hub       *watch.Hub
	documents documents
	payloads  *cache[payloadKey, []byte]
	groups    *groups
	guard     *guard
	crossSite *http.CrossOriginProtection
	upgrader  *websocket.Upgrader
	bodies    chan struct{} // one token a body above the usual limit
	count     counters

	mu         sync.Mutex
	closing    bool
	open       int // connections, also those that are being made
	conns      map[*conn]struct{}
	principals map[string]int // connections of each
	running    sync.WaitGroup // one a connection
}

// New makes a Handler that executes es and follows hub. It panics when an origin
// in the options is not one.
func New(es graphql.ExecutableSchema, hub *watch.Hub, options Options) *Handler {
	options = options.withDefaults()
	h := &Handler{
		options:    options,
		exec:       executor.New(es),
		hub:        hub,
		documents:  documents{newCache[string, *ast.QueryDocument](options.DocumentCache)},
		payloads:   newCache[payloadKey, []byte](options.PayloadCache),
		crossSite:  http.NewCrossOriginProtection(),
		bodies:     make(chan struct{}, options.Limits.AgentBodies),
		conns:      map[*conn]struct{}{},
		principals: map[string]int{},
	}
	h.groups, h.guard = newGroups(h), newGuard(h)
	h.upgrader = h.newUpgrader()
	for _, origin := range options.Origins {
		if err := h.crossSite.AddTrustedOrigin(origin); err != nil {
			panic(fmt.Sprintf("transport: origin %q: %v", origin, err))
		}
	}
	h.exec.SetQueryCache(h.documents)
	h.exec.SetErrorPresenter(h.present)
	h.exec.SetRecoverFunc(recovered)
	h.exec.SetDisableSuggestion(true)
	h.exec.SetDefaultRulesFn(validationRules)
	h.exec.Use(h.guard)
	for _, middleware := range options.AroundOperations {
		h.exec.AroundOperations(middleware)
	}
	for _, middleware := range options.AroundResponses {
		h.exec.AroundResponses(middleware)
	}
	return h
}

// ServeHTTP answers one request, or upgrades it and returns: the connection then
// lives until the client leaves or Shutdown.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if websocket.IsWebSocketUpgrade(r) {
		h.upgrade(w, r)
		return
	}
	h.serveHTTP(w, r)
}

// Shutdown refuses new connections, says farewell (1001) to those that are open,
// one after the other so that they don't all return at the same moment, and waits
// for them. Those that are left after ShutdownWait or at the end of ctx are cut,
// which is an error. Requests over HTTP are the http.Server's to wait for.
func (h *Handler) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.options.ShutdownWait)
	defer cancel()
	done := make(chan struct{})
	conns := h.refuseConnections()
	for i, c := range conns {
		c.farewell()
		if i+1 < len(conns) {
			pause(ctx, h.options.ShutdownOver/time.Duration(len(conns)))
		}
	}
	go func() {
		h.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	cut := h.refuseConnections()
	for _, c := range cut {
		c.cut()
	}
	<-done
	return fmt.Errorf("%d connections did not end in time and were cut: %w", len(cut), ctx.Err())
}

func (h *Handler) refuseConnections() []*conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closing = true
	conns := make([]*conn, 0, len(h.conns))
	for c := range h.conns {
		conns = append(conns, c)
	}
	return conns
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// refuse counts and makes an error about a limit.
func (h *Handler) refuse(limit, format string, args ...any) *muster.Error {
	h.count.refused.Add(1)
	return &muster.Error{
		Code:    muster.Limit,
		Message: fmt.Sprintf(format, args...),
		Details: map[string]any{"limit": limit},
	}
}
