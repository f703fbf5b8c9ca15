package transport

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
)

// controlQueue is how many messages wait for the writer; the reader and the
// operations wait when it is full, and so does the client.
const controlQueue = 16

// farewellTime is how long a close frame and the answer to it may take.
const farewellTime = time.Second

// conn is one connection: a goroutine that reads (serve), one that writes, and a
// short one for each operation that is being started or executed.
type conn struct {
	h       *Handler
	ws      *websocket.Conn
	raw     *steadyConn
	request *http.Request // until connection_init
	cancel  context.CancelFunc

	principal    muster.Principal // written once, before operations
	expiry       *time.Timer      // of the principal; nil: it does not expire
	acknowledged bool
	hurried      bool // the reader is in the middle of a large message

	control chan message
	wake    chan struct{} // a subscription has ended
	leave   chan struct{} // the server shuts down
	tasks   sync.WaitGroup

	mu         sync.Mutex
	operations map[string]*operation
	closing    bool
}

// operation is one id of a connection, from subscribe to its end.
type operation struct {
	id     string
	quoted []byte // the id as JSON
	cancel context.CancelFunc
	ended  atomic.Bool
}

// newConn makes a connection that is ready to serve, and its context: it lives
// longer than the request.
func newConn(h *Handler, ws *websocket.Conn, raw *steadyConn, r *http.Request) (*conn, context.Context) {
	ctx, cancel := context.WithCancel(context.Background())
	return &conn{
		h: h, ws: ws, raw: raw, request: r, cancel: cancel,
		control:    make(chan message, controlQueue),
		wake:       make(chan struct{}, 1),
		leave:      make(chan struct{}, 1),
		operations: map[string]*operation{},
	}, ctx
}

// serve runs the connection to its end and frees all that it holds.
func (c *conn) serve(ctx context.Context) {
	defer c.cancel()
	w := newWriter(c)
	c.tasks.Go(func() { w.run(ctx) })
	c.read(ctx)
	c.cancel()
	if c.expiry != nil {
		c.expiry.Stop()
	}
	c.linger()
	_ = c.raw.Close()
	c.tasks.Wait()
	w.release()
}

// close ends the connection with a code that tells the client why. Only the first
// one counts.
func (c *conn) close(code int, reason string) {
	if !c.beginClose() {
		return
	}
	frame := websocket.FormatCloseMessage(code, reason[:min(len(reason), 123)])
	_ = c.ws.WriteControl(websocket.CloseMessage, frame, time.Now().Add(farewellTime))
	_ = c.raw.SetReadDeadline(time.Now().Add(farewellTime))
}

func (c *conn) beginClose() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	c.closing = true
	c.cancel()
	return true
}

// farewell asks the writer to say goodbye.
func (c *conn) farewell() {
	select {
	case c.leave <- struct{}{}:
	default:
	}
}

// cut ends the connection at once.
func (c *conn) cut() {
	c.beginClose()
	_ = c.raw.below().Close()
}

// extend gives the client time for its next sign of life.
func (c *conn) extend() {
	if c.acknowledged && !c.hurried {
		c.expect(2 * c.h.options.Ping)
	}
}

// hurry gives the client little time for the rest of its message, whatever it
// sends meanwhile.
func (c *conn) hurry() {
	c.hurried = true
	c.expect(c.h.options.BodyTime)
}

// expect moves the end of the reader's patience, unless the connection's end has begun.
func (c *conn) expect(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closing {
		_ = c.raw.SetReadDeadline(time.Now().Add(d))
	}
}

// linger takes what the client still sends after our close frame: closing a socket
// with unread bytes would take the frame away from it.
func (c *conn) linger() {
	c.mu.Lock()
	closing := c.closing
	c.mu.Unlock()
	if !closing {
		return
	}
	c.raw.closeWrite()
	_ = c.raw.SetReadDeadline(time.Now().Add(farewellTime))
	_, _ = io.Copy(io.Discard, c.raw)
}

// begin registers an operation. False when its id is live or there is no room.
func (c *conn) begin(ctx context.Context, id string) (_ context.Context, op *operation, live, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, live := c.operations[id]; live {
		return nil, nil, true, false
	}
	if len(c.operations) >= c.h.options.Limits.Operations {
		return nil, nil, false, true
	}
	ctx, cancel := context.WithCancel(ctx)
	op = &operation{id: id, quoted: encodeJSON(id), cancel: cancel}
	c.operations[id] = op
	return ctx, op, false, false
}

// end takes an operation off, and reports whether it was still on: its last words
// may be said then, and its id be used again.
func (c *conn) end(op *operation) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.operations[op.id] != op {
		return false
	}
	delete(c.operations, op.id)
	op.ended.Store(true)
	op.cancel()
	return true
}

// stop ends the operation of an id because the client said so; silence follows.
func (c *conn) stop(id string) {
	c.mu.Lock()
	op := c.operations[id]
	c.mu.Unlock()
	if op == nil || !c.end(op) {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// tell hands a message to the writer; it waits while the queue is full. False at
// the connection's end.
func (c *conn) tell(ctx context.Context, m message) bool {
	select {
	case c.control <- m:
		return true
	case <-ctx.Done():
		return false
	}
}
