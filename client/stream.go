package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/Khan/genqlient/graphql"
	"github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/muster-cloud/muster"
)

const (
	subprotocol = "graphql-transport-ws"
	// streamID is the id of the one operation of a connection.
	streamID = "1"
	// silence is how long nothing may come: a server pings every 20 s.
	silence = 50 * time.Second
	// writeWait bounds each write; they are all small.
	writeWait = 5 * time.Second
	// maxMessage bounds one message, in bytes.
	maxMessage = 4 << 20
)

// stream is one connection of a watch. One goroutine uses it.
type stream struct {
	client *Client
	conn   *websocket.Conn
	stop   func() bool // ends the watch on ctx
	ackBy  time.Time   // until when the acknowledgement has to come; zero once it has
}

// message is one of graphql-transport-ws.
type message struct {
	ID      string          `json:"id,omitempty"`
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// open connects and waits until the server has acknowledged.
func (c *Client) open(ctx context.Context) (*stream, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	s := &stream{client: c, conn: conn, ackBy: time.Now().Add(c.options.Timeout)}
	conn.SetReadLimit(maxMessage)
	conn.SetPingHandler(func(data string) error {
		if err := s.expect(ctx); err != nil {
			return err
		}
		return conn.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(writeWait))
	})
	// The end of ctx wakes the reader. It sets a deadline and does not close, so
	// that a closing handshake is still possible.
	s.stop = context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	if err := s.initialise(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// dial makes the WebSocket, within the timeout.
func (c *Client) dial(ctx context.Context) (*websocket.Conn, error) {
	return c.dialAt(ctx, *c.endpoint, subprotocol)
}

// dialAt makes a WebSocket of a protocol at an address of the server's, within the timeout.
func (c *Client) dialAt(ctx context.Context, address url.URL, protocol string) (*websocket.Conn, error) {
	address.Scheme = map[string]string{"http": "ws", "https": "wss"}[address.Scheme]
	var interrupt func() bool
	connect := c.options.Transport.DialContext
	if connect == nil {
		connect = new(net.Dialer).DialContext
	}
	dialer := websocket.Dialer{
		Subprotocols:     []string{protocol},
		HandshakeTimeout: c.options.Timeout,
		Proxy:            c.options.Transport.Proxy,
		TLSClientConfig:  c.tlsOfWatch(),
		NetDialContext: func(dialCtx context.Context, network, addr string) (net.Conn, error) {
			conn, err := connect(dialCtx, network, addr)
			if err == nil { // the dialer itself would not notice the end of ctx during the handshake
				interrupt = context.AfterFunc(ctx, func() { _ = conn.Close() })
			}
			return conn, err
		},
	}
	conn, resp, err := dialer.DialContext(ctx, address.String(), c.header())
	if interrupt != nil {
		interrupt()
	}
	if err != nil {
		return nil, c.refused(resp, err)
	}
	if conn.Subprotocol() != protocol {
		_ = conn.Close()
		return nil, &muster.Error{Code: muster.Invalid, Message: fmt.Sprintf("%s does not speak %s: check the URL", c.endpoint, protocol)}
	}
	return conn, nil
}

// tlsOfWatch is the transport's settings of TLS without HTTP/2, by which no WebSocket begins.
func (c *Client) tlsOfWatch() *tls.Config {
	config := c.options.Transport.TLSClientConfig.Clone()
	if config != nil {
		config.NextProtos = []string{"http/1.1"}
	}
	return config
}

// refused is why no WebSocket came about: only what may pass is a *lostError.
func (c *Client) refused(resp *http.Response, err error) error {
	if distrusted := c.distrusted(err); distrusted != nil {
		return distrusted
	}
	if resp == nil || !errors.Is(err, websocket.ErrBadHandshake) {
		return &lostError{c.unreachable(err)}
	}
	answer := graphql.HTTPError{StatusCode: resp.StatusCode}
	_ = json.NewDecoder(resp.Body).Decode(&answer.Response) // what is no answer of muster's has its status alone
	refusal := c.fromHTTP(&answer)
	switch {
	case resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusRequestTimeout:
		return &lostError{refusal}
	}
	return refusal
}

// initialise says hello and waits for the acknowledgement.
func (s *stream) initialise(ctx context.Context) error {
	hello := message{Type: "connection_init"}
	if s.client.options.Key != "" {
		payload, err := json.Marshal(map[string]string{"authorization": s.client.authorization()})
		if err != nil {
			return &muster.Error{Code: muster.Invalid, Message: "the access key cannot be sent: it is no text"}
		}
		hello.Payload = payload
	}
	if err := s.write(hello); err != nil {
		return err
	}
	for {
		m, err := s.read(ctx)
		if err != nil {
			return err
		}
		switch m.Type {
		case "connection_ack":
			s.ackBy = time.Time{}
			return nil
		case "pong":
		default:
			return s.foreign(m)
		}
	}
}

func (s *stream) subscribe(name, document string, variables map[string]any) error {
	payload, err := json.Marshal(map[string]any{
		"operationName": name, "query": document, "variables": variables,
	})
	if err != nil {
		return &muster.Error{Code: muster.Invalid, Err: err, Message: fmt.Sprintf("the filter cannot be sent: %v", err)}
	}
	return s.write(message{ID: streamID, Type: "subscribe", Payload: payload})
}

// next waits for the next event.
func (s *stream) next(ctx context.Context) (Event, error) {
	event, err := next[Event](ctx, s)
	if errors.Is(err, errComplete) {
		return Event{}, &lostError{muster.Errorf(muster.Unavailable, "%s ended the watch", s.client.endpoint)}
	}
	if err != nil {
		return Event{}, err
	}
	event.name()
	return *event, nil
}

// errComplete is the end of a subscription that has no more to say.
var errComplete = errors.New("the subscription is complete")

// next waits for what a subscription delivers next.
func next[T any](ctx context.Context, s *stream) (*T, error) {
	for {
		m, err := s.read(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case m.Type == "pong":
		case m.ID != streamID:
			return nil, s.foreign(m)
		case m.Type == "next":
			return event[T](s, m.Payload)
		case m.Type == "error":
			var list gqlerror.List
			if err := json.Unmarshal(m.Payload, &list); err != nil {
				return nil, s.foreign(m)
			}
			return nil, passing(fromGraphQL(list))
		case m.Type == "complete":
			return nil, errComplete
		default:
			return nil, s.foreign(m)
		}
	}
}

// event reads a payload, whose data has one field: the subscription's.
func event[T any](s *stream, payload json.RawMessage) (*T, error) {
	var answer struct {
		Data   map[string]*T `json:"data"`
		Errors gqlerror.List `json:"errors"`
	}
	if err := json.Unmarshal(payload, &answer); err != nil {
		return nil, s.foreign(message{Type: "next", Payload: payload})
	}
	if len(answer.Errors) > 0 {
		return nil, passing(fromGraphQL(answer.Errors))
	}
	for _, event := range answer.Data {
		if event != nil {
			return event, nil
		}
	}
	return nil, s.foreign(message{Type: "next", Payload: payload})
}

// passing makes a *lostError of an error that another try may not meet.
func passing(err error) error {
	if muster.CodeOf(err) == muster.Unavailable {
		return &lostError{err}
	}
	return err
}

// read returns the next message but pings, which it answers.
func (s *stream) read(ctx context.Context) (message, error) {
	for {
		if err := s.expect(ctx); err != nil {
			return message{}, err
		}
		kind, text, err := s.conn.ReadMessage()
		if err != nil {
			return message{}, s.client.closed(err)
		}
		var m message
		if kind != websocket.TextMessage || json.Unmarshal(text, &m) != nil {
			return message{}, s.foreign(message{Type: "unreadable"})
		}
		if m.Type != "ping" {
			return m, nil
		}
		if err := s.write(message{Type: "pong"}); err != nil {
			return message{}, err
		}
	}
}

// expect moves the read deadline: after it the connection is lost. The end of
// ctx is looked at afterwards: the deadline that it sets must not be overwritten
// unseen.
func (s *stream) expect(ctx context.Context) error {
	deadline := s.ackBy
	if deadline.IsZero() {
		deadline = time.Now().Add(silence)
	}
	if err := s.conn.SetReadDeadline(deadline); err != nil {
		return &lostError{s.client.unreachable(err)}
	}
	return ctx.Err()
}

func (s *stream) write(m message) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(writeWait)) // only ever fails with the connection, as the write does
	if err := s.conn.WriteJSON(m); err != nil {
		return &lostError{s.client.unreachable(err)}
	}
	return nil
}

// foreign is the end of a connection whose other side does not keep to the
// protocol: another one would fare the same.
func (s *stream) foreign(m message) error {
	return &muster.Error{Code: muster.Internal, Message: fmt.Sprintf("%s sent a %q message that does not belong there: check the URL and the server's version", s.client.endpoint, m.Type)}
}

// close says goodbye if there is somebody to hear it, and frees everything.
func (s *stream) close() {
	s.stop()
	goodbye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	_ = s.conn.WriteControl(websocket.CloseMessage, goodbye, time.Now().Add(time.Second))
	_ = s.conn.Close()
}
