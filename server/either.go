package server

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync/atomic"
)

// secureListener takes connections by TLS. Those that never leave this machine may do
// without: programs here need no certificate.
type secureListener struct {
	net.Listener
	config *tls.Config
}

// Accept returns the next connection; its handshake has yet to come.
func (l *secureListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if isLocal(conn.LocalAddr()) && isLocal(conn.RemoteAddr()) {
		return &eitherConn{Conn: conn, config: l.config}, nil
	}
	return tls.Server(conn, l.config), nil
}

func isLocal(addr net.Addr) bool {
	at, err := netip.ParseAddrPort(addr.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// recordHandshake is the first byte of a connection by TLS, and of no HTTP.
const recordHandshake = 0x16

// eitherConn is a connection by TLS if it begins like one, else a plain one.
type eitherConn struct {
	net.Conn
	config *tls.Config
	over   atomic.Pointer[net.Conn] // what to read and write through; nil before the first byte
}

// Read reads what the other side said.
func (c *eitherConn) Read(p []byte) (int, error) {
	if over := c.over.Load(); over != nil {
		return (*over).Read(p)
	}
	first := make([]byte, 1)
	if _, err := c.Conn.Read(first); err != nil {
		return 0, err
	}
	var over net.Conn = &begunConn{Conn: c.Conn, first: first}
	if first[0] == recordHandshake {
		over = tls.Server(over, c.config)
	}
	c.over.Store(&over)
	return over.Read(p)
}

// Write writes; before anything was read it writes plainly.
func (c *eitherConn) Write(p []byte) (int, error) { return c.through().Write(p) }

// Close closes the connection, with a farewell where there is one.
func (c *eitherConn) Close() error { return c.through().Close() }

// CloseWrite tells the other side that nothing follows.
func (c *eitherConn) CloseWrite() error {
	if half, ok := c.through().(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// NetConn is the connection below.
func (c *eitherConn) NetConn() net.Conn { return c.Conn }

func (c *eitherConn) through() net.Conn {
	if over := c.over.Load(); over != nil {
		return *over
	}
	return c.Conn
}

// begunConn is a connection whose first byte was read already.
type begunConn struct {
	net.Conn
	first []byte
}

func (c *begunConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 && len(p) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite tells the other side that nothing follows.
func (c *begunConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
