package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
)

// ExecStreams are where a command's input comes from and its output goes to. Nil: no
// input; output that is dropped.
type ExecStreams struct {
	Stdin  io.Reader // read until the command ends; a Read that waits then is not waited for
	Stdout io.Writer // with a terminal, what appears on it
	Stderr io.Writer
	Resize <-chan muster.ExecSize // of the terminal, if there is one
}

// Exec runs a command in an instance, within its limits, and returns how it ended. The
// end of ctx, or of the connection, kills it. CONFLICT: the instance does not run;
// UNAVAILABLE: its node is away, or the connection was lost; FORBIDDEN: the key may not, or
// has ended meanwhile.
func (c *Client) Exec(ctx context.Context, id muster.InstanceID, request muster.ExecRequest, streams ExecStreams) (muster.ExecExited, error) {
	conn, err := c.dialExec(ctx, "/exec/"+url.PathEscape(string(id)))
	if err != nil {
		return muster.ExecExited{}, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.WriteJSON(request); err != nil {
		return muster.ExecExited{}, c.unreachable(err)
	}
	s := &execCaller{client: c, conn: conn, streams: streams}
	hangUp := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer hangUp()
	done := make(chan struct{})
	defer close(done)
	if streams.Stdin != nil {
		go s.send(done) // it ends with the connection, at the latest with the reader
	} else {
		_ = s.write(muster.ExecEOF, nil)
	}
	if streams.Resize != nil {
		go s.resize(done)
	}
	exited, err := s.receive()
	if err != nil && ctx.Err() != nil {
		return muster.ExecExited{}, ctx.Err()
	}
	return exited, err
}

// dialExec opens a WebSocket of a session at a path of the server's.
func (c *Client) dialExec(ctx context.Context, path string) (*websocket.Conn, error) {
	address := *c.endpoint
	address.Path = strings.TrimSuffix(address.Path, "/graphql") + path
	conn, err := c.dialAt(ctx, address, muster.ExecProtocol)
	if err != nil {
		if loss, ok := errors.AsType[*lostError](err); ok {
			return nil, loss.err
		}
		return nil, err
	}
	conn.SetReadLimit(muster.MaxExecMessage)
	return conn, nil
}

// execCaller is the side of who asked for a command.
type execCaller struct {
	client  *Client
	conn    *websocket.Conn
	streams ExecStreams
	writing sync.Mutex
}

// receive takes the command's output until it ends.
func (s *execCaller) receive() (exited muster.ExecExited, err error) {
	for {
		_ = s.conn.SetReadDeadline(time.Now().Add(silence))
		kind, message, err := s.conn.ReadMessage()
		if err != nil {
			return exited, s.client.ended(err)
		}
		if kind == websocket.TextMessage {
			return exited, refusal(message)
		}
		if len(message) == 0 {
			continue
		}
		switch payload := message[1:]; message[0] {
		case muster.ExecStdout:
			err = put(s.streams.Stdout, payload)
		case muster.ExecStderr:
			err = put(s.streams.Stderr, payload)
		case muster.ExecExit:
			return exited, json.Unmarshal(payload, &exited)
		}
		if err != nil {
			return exited, err
		}
	}
}

func put(w io.Writer, b []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(b)
	return err
}

// refusal is why a command was not run.
func refusal(message []byte) error {
	var said struct {
		Code    muster.Code `json:"code"`
		Message string      `json:"message"`
	}
	if err := json.Unmarshal(message, &said); err != nil || said.Code == "" {
		return muster.Errorf(muster.Internal, "the server said something that is not understood")
	}
	return &muster.Error{Code: said.Code, Message: said.Message}
}

// ended is why a session is over before its command said so.
func (c *Client) ended(err error) error {
	if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
		code := muster.Unavailable
		if closed.Code == 4403 {
			code = muster.Forbidden
		}
		return muster.Errorf(code, "the connection to the command was lost, and it was killed: %s", closed.Text)
	}
	return c.unreachable(err)
}

func (s *execCaller) write(kind byte, payload []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(silence))
	return s.conn.WriteMessage(websocket.BinaryMessage, append([]byte{kind}, payload...))
}

// send sends the input until it ends or the command has.
func (s *execCaller) send(done <-chan struct{}) {
	buffer := make([]byte, muster.MaxExecMessage-1)
	for {
		n, err := s.streams.Stdin.Read(buffer)
		select {
		case <-done:
			return
		default:
		}
		if n > 0 && s.write(muster.ExecStdin, buffer[:n]) != nil {
			return
		}
		if err != nil {
			_ = s.write(muster.ExecEOF, nil)
			return
		}
	}
}

func (s *execCaller) resize(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case size, ok := <-s.streams.Resize:
			if !ok {
				return
			}
			b, _ := json.Marshal(size) // numbers
			if s.write(muster.ExecResize, b) != nil {
				return
			}
		}
	}
}
