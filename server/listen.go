package server

import (
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-cloud/muster"
)

// listen takes the address.
func listen(address string) (*net.TCPListener, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, muster.InvalidField("listen", "%q is not an address; write host:port such as %s", address, DefaultListen)
	}
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, muster.Errorf(muster.Conflict, "cannot listen on %s: the port is in use; stop what uses it, or choose another with --listen", address)
	case errors.Is(err, syscall.EACCES):
		return nil, muster.Errorf(muster.Invalid, "cannot listen on %s: not permitted; choose a port above 1023 with --listen", address)
	case err != nil:
		return nil, muster.Errorf(muster.Invalid, "cannot listen on %s: %w; choose another address with --listen", address, err)
	}
	return l.(*net.TCPListener), nil
}

// checkKeyless refuses a server off loopback that asks nobody for a key.
func checkKeyless(o Options) error {
	host, _, err := net.SplitHostPort(o.Listen) // listen refuses what cannot be read
	if err == nil && o.Keyless && !loopback(host) {
		return muster.InvalidField("keyless", "%s is not on loopback, and without keys everybody who reaches it could do everything: leave --keyless out, or listen on %s", o.Listen, DefaultListen)
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || (ip != nil && ip.IsLoopback())
}

// cappedListener answers connections beyond most with 503 and closes them, so
// that those who are in are never short of file descriptors.
type cappedListener struct {
	*net.TCPListener
	most    int64
	open    atomic.Int64
	refused atomic.Int64
	close   func() error
}

func newCappedListener(l *net.TCPListener, most int) *cappedListener {
	return &cappedListener{TCPListener: l, most: int64(most), close: sync.OnceValue(l.Close)}
}

// Close stops accepting; every call returns what the first one did.
func (l *cappedListener) Close() error { return l.close() }

const fullAnswer = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n" +
	"too many connections; try again in a moment, or raise --max-connections\n"

// Accept returns the next connection that there is room for.
func (l *cappedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &cappedConn{TCPConn: conn, release: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		l.refused.Add(1)
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte(fullAnswer))
		_ = conn.Close()
	}
}

// cappedConn gives its place back when it closes. It keeps the abilities of a TCP
// connection, such as closing one direction.
type cappedConn struct {
	*net.TCPConn
	release func()
}

// Close closes the connection.
func (c *cappedConn) Close() error {
	defer c.release()
	return c.TCPConn.Close()
}
