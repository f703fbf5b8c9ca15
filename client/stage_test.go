package client_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster/client"
)

// stage plays the server's part of watches: one act a connection, the last one
// again for all further ones.
type stage struct {
	t    *testing.T
	acts []func(*peer)

	mu    sync.Mutex
	dials []time.Time
}

func newStage(t *testing.T, acts ...func(*peer)) (*stage, *client.Client) {
	s := &stage{t: t, acts: acts}
	c := serve(t, s, client.Options{})
	return s, c
}

func (s *stage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.dials = append(s.dials, time.Now())
	act := s.acts[min(len(s.dials), len(s.acts))-1]
	s.mu.Unlock()
	act(&peer{t: s.t, w: w, r: r})
}

func (s *stage) dialled() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.dials...)
}

// peer is the server's end of one connection.
type peer struct {
	t    *testing.T
	w    http.ResponseWriter
	r    *http.Request
	conn *websocket.Conn
	asks map[string]any // the variables of the subscription
}

// status refuses the connection.
func status(code int) func(*peer) {
	return func(p *peer) { p.w.WriteHeader(code) }
}

func (p *peer) upgrade() {
	upgrader := websocket.Upgrader{Subprotocols: []string{"graphql-transport-ws"}}
	conn, err := upgrader.Upgrade(p.w, p.r, nil)
	if err != nil {
		p.t.Error(err)
		return
	}
	p.conn = conn
}

// read returns the next message, nil once the client has gone.
func (p *peer) read() map[string]any {
	var m map[string]any
	if err := p.conn.ReadJSON(&m); err != nil {
		return nil
	}
	return m
}

func (p *peer) expect(kind string) map[string]any {
	m := p.read()
	if m["type"] != kind {
		p.t.Errorf("the client sent %v, want a %s", m, kind)
	}
	return m
}

// say sends text; a client that has gone is none of a script's business.
func (p *peer) say(format string, args ...any) {
	_ = p.conn.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, format, args...))
}

// open plays the start of a connection up to the subscription.
func (p *peer) open() {
	p.upgrade()
	p.expect("connection_init")
	p.say(`{"type":"connection_ack"}`)
	payload, _ := p.expect("subscribe")["payload"].(map[string]any)
	p.asks, _ = payload["variables"].(map[string]any)
}

// opened is an act that begins with the subscription.
func opened(act func(*peer)) func(*peer) {
	return func(p *peer) {
		p.open()
		defer func() { _ = p.conn.Close() }()
		act(p)
	}
}

func (p *peer) event(kind string, revision int) {
	cursor := fmt.Sprintf(`"c%d"`, revision)
	if kind == "PRESENT" {
		cursor = "null"
	}
	p.say(`{"id":"1","type":"next","payload":{"data":{"healthChanges":{"type":%q,"cursor":%s,"revision":%d,"at":null,"kind":"NODE","node":{"id":"a","uid":"n-1"}}}}}`, kind, cursor, revision)
}

func (p *peer) fail(code string) {
	p.say(`{"id":"1","type":"error","payload":[{"message":"said the server","extensions":{"code":%q}}]}`, code)
}

func (p *peer) closeWith(code int) {
	if code == websocket.CloseNoStatusReceived {
		_ = p.conn.WriteMessage(websocket.CloseMessage, nil)
		p.drain()
		return
	}
	text := []byte{byte(code >> 8), byte(code)} // also codes that gorilla would not format
	_ = p.conn.WriteMessage(websocket.CloseMessage, append(text, "as the script says"...))
	p.drain()
}

// drain reads until the client has gone.
func (p *peer) drain() {
	for {
		if _, _, err := p.conn.ReadMessage(); err != nil {
			return
		}
	}
}

// revision is the place that the client resumes after: its cursors are cN.
func (p *peer) since() int {
	text, _ := p.asks["since"].(string)
	n := 0
	_, _ = fmt.Sscanf(text, "c%d", &n)
	return n
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
