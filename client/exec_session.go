package client

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
)

// ServeExec is the side of a command: it connects to a session of the server's, has run
// run it with the caller's streams, and tells how it ended. It returns once that is done,
// or the caller is gone, which ends run's context. The reader of Stdin ends with the input.
func (c *Client) ServeExec(ctx context.Context, session string, run func(context.Context, ExecStreams) muster.ExecExited) error {
	conn, err := c.dialExec(ctx, "/exec/sessions/"+url.PathEscape(session))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hangUp := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer hangUp()
	input, feed := io.Pipe()
	sizes := make(chan muster.ExecSize, 1)
	s := &execServer{conn: conn, input: feed, sizes: sizes}
	go func() {
		defer cancel() // the caller is gone: so is the command
		s.receive()
	}()
	exited := run(ctx, ExecStreams{Stdin: input, Stdout: execOutput{s, muster.ExecStdout}, Stderr: execOutput{s, muster.ExecStderr}, Resize: sizes})
	_ = input.Close()
	b, _ := json.Marshal(exited) // numbers and text
	err = s.write(muster.ExecExit, b)
	s.part()
	return err
}

// execServer is the side of a command.
type execServer struct {
	conn    *websocket.Conn
	input   *io.PipeWriter
	sizes   chan muster.ExecSize
	writing sync.Mutex
}

// receive takes the caller's input until the connection ends.
func (s *execServer) receive() {
	defer func() { _ = s.input.Close() }()
	for {
		_ = s.conn.SetReadDeadline(time.Now().Add(silence))
		_, message, err := s.conn.ReadMessage()
		if err != nil {
			return
		}
		if len(message) == 0 {
			continue
		}
		switch payload := message[1:]; message[0] {
		case muster.ExecStdin:
			_, _ = s.input.Write(payload) // one that reads nothing holds its caller up, and nobody else
		case muster.ExecEOF:
			_ = s.input.Close()
		case muster.ExecResize:
			s.resize(payload)
		}
	}
}

// resize hands the newest size over.
func (s *execServer) resize(payload []byte) {
	var size muster.ExecSize
	if json.Unmarshal(payload, &size) != nil {
		return
	}
	select {
	case <-s.sizes:
	default:
	}
	s.sizes <- size // there is room: nobody else sends
}

func (s *execServer) write(kind byte, payload []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(silence))
	return s.conn.WriteMessage(websocket.BinaryMessage, append([]byte{kind}, payload...))
}

// part says goodbye, and gives the other side a moment to have read everything.
func (s *execServer) part() {
	frame := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	_ = s.conn.WriteControl(websocket.CloseMessage, frame, time.Now().Add(writeWait))
}

// execOutput writes what a command writes, in messages of bounded size.
type execOutput struct {
	s    *execServer
	kind byte
}

func (o execOutput) Write(b []byte) (written int, err error) {
	for written < len(b) {
		part := b[written:min(len(b), written+muster.MaxExecMessage-1)]
		if err := o.s.write(o.kind, part); err != nil {
			return written, err
		}
		written += len(part)
	}
	return written, nil
}
