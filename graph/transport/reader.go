package transport

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
)

// The close codes of graphql-transport-ws, and those of RFC 6455 that are used.
const (
	closeGoingAway    = websocket.CloseGoingAway
	closeTryAgain     = websocket.CloseTryAgainLater
	closeBadRequest   = 4400
	closeUnauthorized = 4401
	closeForbidden    = 4403
	closeSubprotocol  = 4406
	closeInitTimeout  = 4408
	closeDuplicate    = 4409
	closeTooManyInits = 4429
)

// What is said of keys that are no longer good; a reason has at most 123 bytes.
const (
	keyEnded   = "the access key was revoked, or has a new secret: present one that is good"
	keyExpired = "the access key has expired: present one that is good"
)

// incoming is a message of the client.
type incoming struct {
	ID      *string         `json:"id"`
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload"`
}

// read takes the client's messages until the connection ends.
func (c *conn) read(ctx context.Context) {
	if c.ws.Subprotocol() != subprotocol {
		c.close(closeSubprotocol, "Subprotocol not acceptable: use "+subprotocol)
		return
	}
	c.ws.SetReadLimit(c.h.options.Limits.Body) // strangers get no more
	c.expect(c.h.options.InitTimeout)
	c.ws.SetPongHandler(func(string) error {
		c.extend()
		return nil
	})
	for {
		kind, r, err := c.ws.NextReader()
		if err != nil {
			c.unreadable(err)
			return
		}
		b, err := c.h.readBody(ctx, r, c.hurry)
		if err != nil {
			c.unreadable(err)
			return
		}
		c.hurried = false
		if !c.receive(ctx, kind, b) {
			return
		}
		c.extend()
	}
}

// unreadable closes the connection when the client can still be told why.
func (c *conn) unreadable(err error) {
	if _, left := errors.AsType[*websocket.CloseError](err); left {
		return
	}
	switch {
	case timedOut(err) && !c.acknowledged:
		c.close(closeInitTimeout, "Connection initialisation timeout")
	case errors.Is(err, errBusy):
		c.close(closeTryAgain, "Too many large messages at once: try again in a moment")
	case timedOut(err) && c.hurried:
		c.close(closeTryAgain, "Too slow: a large message did not come in time")
	case timedOut(err):
		c.close(closeGoingAway, "No answer to pings")
	case errors.Is(err, websocket.ErrReadLimit):
		c.h.count.refused.Add(1)
	}
	c.beginClose() // gorilla has sent 1009 or 1002 where that is due
}

// timedOut reports whether a deadline passed; gorilla hides which one.
func timedOut(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// receive handles one message; false when the connection is over.
func (c *conn) receive(ctx context.Context, kind int, b body) bool {
	var m incoming
	if kind != websocket.TextMessage || json.Unmarshal(b.bytes, &m) != nil {
		b.release()
		c.close(closeBadRequest, "Invalid message: send JSON objects as text")
		return false
	}
	if m.Type == "subscribe" {
		return c.subscribe(ctx, m, b)
	}
	b.release()
	switch m.Type {
	case "connection_init":
		return c.initialise(ctx, m.Payload)
	case "ping":
		return c.tell(ctx, pong(m.Payload))
	case "pong":
		return true
	case "complete":
		if m.ID == nil {
			c.close(closeBadRequest, "Invalid message: complete needs an id")
			return false
		}
		c.stop(*m.ID)
		return true
	default:
		c.close(closeBadRequest, "Invalid message: unknown type")
		return false
	}
}

// initialise answers connection_init.
func (c *conn) initialise(ctx context.Context, payload json.RawMessage) bool {
	if c.acknowledged {
		c.close(closeTooManyInits, "Too many initialisation requests")
		return false
	}
	var init map[string]any
	if len(payload) > 0 && json.Unmarshal(payload, &init) != nil {
		c.close(closeBadRequest, "Invalid message: the payload of connection_init has to be an object")
		return false
	}
	if init == nil {
		init = map[string]any{}
	}
	timed, cancel := context.WithTimeout(ctx, c.h.options.InitTimeout)
	defer cancel()
	principal, err := c.h.options.Authenticate(timed, c.request, init)
	c.request = nil
	if err != nil {
		shown := c.h.present(ctx, err)
		code := closeForbidden
		if shown.Extensions["code"] == muster.Unavailable || shown.Extensions["code"] == muster.Internal {
			code = closeTryAgain
		}
		c.close(code, shown.Message)
		return false
	}
	if !c.h.register(c, principal) {
		c.close(closeTryAgain, "Too many connections of this principal: close some or try again later")
		return false
	}
	if !c.h.options.Admitted(principal) { // its key may have ended before Expel could see the connection
		c.close(closeForbidden, keyEnded)
		return false
	}
	if !principal.Expires.IsZero() {
		c.expiry = time.AfterFunc(time.Until(principal.Expires), func() { c.close(closeForbidden, keyExpired) })
	}
	c.ws.SetReadLimit(c.h.options.Limits.AgentBody)
	return c.tell(ctx, acknowledgement())
}

// subscribe begins an operation.
func (c *conn) subscribe(ctx context.Context, m incoming, b body) bool {
	if !c.acknowledged {
		b.release()
		c.close(closeUnauthorized, "Unauthorized: send connection_init first")
		return false
	}
	params, err := parseParams(m.Payload)
	if err != nil || params.Query == "" || m.ID == nil || *m.ID == "" || len(*m.ID) > maxIDBytes {
		b.release()
		c.close(closeBadRequest, "Invalid message: subscribe needs an id of at most 128 bytes and a payload with a query")
		return false
	}
	opCtx, op, live, full := c.begin(ctx, *m.ID)
	switch {
	case live:
		b.release()
		c.close(closeDuplicate, "Subscriber for "+*m.ID+" already exists")
		return false
	case full:
		b.release()
		e := c.h.refuse("operations", "the connection has its %d operations; complete some or open another one", c.h.options.Limits.Operations)
		return c.tell(ctx, failed(encodeJSON(*m.ID), c.h.failure(ctx, e)))
	}
	c.tasks.Go(func() {
		defer b.release()
		c.execute(opCtx, op, params, len(b.bytes))
	})
	return true
}
