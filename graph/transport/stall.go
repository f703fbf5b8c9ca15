package transport

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// chunk is how much is written under one deadline.
const chunk = 4 << 10

// steadyConn is a connection whose writes may take as long as they like while the
// other side takes something; one that takes nothing for the stall time fails with
// os.ErrDeadlineExceeded. Its own write deadlines are ignored.
type steadyConn struct {
	net.Conn
	stall time.Duration
}

// SetWriteDeadline does nothing.
func (c *steadyConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets that of reads.
func (c *steadyConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Write writes all of b in chunks, each under a fresh deadline.
func (c *steadyConn) Write(b []byte) (written int, err error) {
	for written < len(b) {
		part := b[written:min(len(b), written+chunk)]
		if err := c.Conn.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(part)
		written += n
		if err != nil && (n == 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
			return written, err
		}
	}
	return written, nil
}

// maxUnsent is how much of what was written the kernel keeps before the other side
// has room for it, in bytes.
const maxUnsent = 16 << 10

// pull keeps the kernel from taking more than is about to be sent. Otherwise one
// that reads nothing would hold megabytes, what is written now would come after
// all of that, and one that reads slowly would pass for one that reads nothing: a
// full socket counts as writable only once a good part of it has gone.
func (c *steadyConn) pull() {
	tcp, ok := c.below().(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
		})
	}
}

// below is the connection that the kernel knows: TLS may be over it.
func (c *steadyConn) below() net.Conn {
	if over, ok := c.Conn.(interface{ NetConn() net.Conn }); ok {
		return over.NetConn()
	}
	return c.Conn
}

// goodbyeTime is how long the end of TLS may wait for the other side to take it.
const goodbyeTime = time.Second

// Close closes the connection. TLS says so first, and by itself would wait 5 s for one who
// takes nothing.
func (c *steadyConn) Close() error {
	below := c.below()
	if below == c.Conn {
		return c.Conn.Close()
	}
	timer := time.AfterFunc(goodbyeTime, func() { _ = below.Close() })
	defer timer.Stop()
	return c.Conn.Close()
}

// closeWrite tells the other side that nothing follows, where that can be told.
func (c *steadyConn) closeWrite() {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// steadyHijacker takes a connection over from net/http as a steadyConn.
type steadyHijacker struct {
	http.ResponseWriter
	stall time.Duration
	conn  *steadyConn
}

// Hijack implements http.Hijacker.
func (h *steadyHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffers, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.conn = &steadyConn{Conn: conn, stall: h.stall}
	h.conn.pull()
	return h.conn, buffers, nil
}
