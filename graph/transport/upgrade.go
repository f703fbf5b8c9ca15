package transport

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/muster-cloud/muster"
)

// subprotocol is the only one that is spoken.
const subprotocol = "graphql-transport-ws"

// The sizes of a connection's buffers; that for writing is shared while idle.
const (
	readBuffer  = 1 << 10
	writeBuffer = 4 << 10
)

func (h *Handler) newUpgrader() *websocket.Upgrader {
	return &websocket.Upgrader{
		ReadBufferSize:  readBuffer,
		WriteBufferSize: writeBuffer,
		WriteBufferPool: &sync.Pool{},
		Subprotocols:    []string{subprotocol},
		CheckOrigin:     h.SameOrigin,
		Error: func(w http.ResponseWriter, r *http.Request, status int, reason error) {
			e := muster.Errorf(muster.Invalid, "%w", reason)
			if status == http.StatusForbidden {
				e = muster.Errorf(muster.Forbidden, "this page's origin may not connect to the server; allow it in the server's settings")
			}
			refuseUpgrade(w, r, status, e)
		},
	}
}

// SameOrigin lets programs through, which send no Origin, and pages of the server's
// own host or of an allowed origin.
func (h *Handler) SameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(h.options.Origins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// upgrade makes a connection of a request and gives the goroutine back to net/http.
func (h *Handler) upgrade(w http.ResponseWriter, r *http.Request) {
	if e := h.admit(); e != nil {
		w.Header().Set("Retry-After", "5")
		refuseUpgrade(w, r, http.StatusServiceUnavailable, e)
		return
	}
	hijacker := &steadyHijacker{ResponseWriter: w, stall: h.options.WriteStall}
	ws, err := h.upgrader.Upgrade(hijacker, r, nil)
	if err != nil {
		h.dismiss(nil)
		return
	}
	c, ctx := newConn(h, ws, hijacker.conn, r)
	h.enlist(c)
	go func() {
		defer h.dismiss(c)
		c.serve(ctx)
	}()
}

// admit makes room for a connection; dismiss gives it back.
func (h *Handler) admit() *muster.Error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch most := h.options.Limits.Connections; {
	case h.closing:
		return muster.Errorf(muster.Unavailable, "the server is shutting down; try again in a moment")
	case h.open >= most:
		return h.refuse("connections", "the server has its %d connections; close some or try again later", most)
	}
	h.open++
	h.running.Add(1)
	return nil
}

// enlist lets Shutdown know of a connection.
func (h *Handler) enlist(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns[c] = struct{}{}
	if h.closing {
		c.farewell()
	}
}

// dismiss takes a connection off; nil is one that was never made.
func (h *Handler) dismiss(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
	if c != nil {
		delete(h.conns, c)
		if c.acknowledged {
			h.deregisterLocked(c.principal)
		}
	}
	h.running.Done()
}

func (h *Handler) deregisterLocked(p muster.Principal) {
	h.principals[p.Identity()]--
	if h.principals[p.Identity()] == 0 {
		delete(h.principals, p.Identity())
	}
}

// register counts a connection for its principal, once it is known; false when the
// principal has too many.
func (h *Handler) register(c *conn, p muster.Principal) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.principals[p.Identity()] >= h.options.Limits.ConnectionsPerPrincipal {
		h.count.refused.Add(1)
		return false
	}
	h.principals[p.Identity()]++
	c.principal, c.acknowledged = p, true
	return true
}

// Expel closes the connections of those that are no longer admitted, with 4403: their
// key was revoked or has expired, or has a new secret.
func (h *Handler) Expel() {
	h.mu.Lock()
	var out []*conn
	for c := range h.conns {
		if c.acknowledged && !h.options.Admitted(c.principal) {
			out = append(out, c)
		}
	}
	h.mu.Unlock()
	for _, c := range out {
		go c.close(closeForbidden, keyEnded)
	}
}

func refuseUpgrade(w http.ResponseWriter, r *http.Request, status int, e *muster.Error) {
	x := &exchange{w: w, r: r, mediaType: typeJSON}
	x.write(status, encodeErrors(gqlerror.List{fill(&gqlerror.Error{}, e)}))
}
