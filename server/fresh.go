package server

import (
	"net"
	"net/http"
	"sync"
)

// freshConns are the connections that have not said anything yet. A client may
// dial one ahead and never use it; http.Server.Shutdown would wait 5 s for it.
type freshConns struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// note is an http.Server's ConnState.
func (f *freshConns) note(conn net.Conn, state http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if state != http.StateNew {
		delete(f.conns, conn)
		return
	}
	if f.conns == nil {
		f.conns = map[net.Conn]struct{}{}
	}
	f.conns[conn] = struct{}{}
}

// close closes them.
func (f *freshConns) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.conns {
		_ = conn.Close() // the server notices, and forgets it
	}
}
