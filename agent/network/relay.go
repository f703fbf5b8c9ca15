package network

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/muster-cloud/muster"
)

// The limits of what comes by IPv6 to one port.
const (
	relayPeers   = 1024             // connections, or senders of datagrams, at a time
	relayIdle    = time.Minute      // after which a sender of datagrams is forgotten
	relayConnect = 10 * time.Second // for the service to accept
	relayPacket  = 64 << 10
)

// relay passes on what comes to a port by IPv6, which machines have not, to a machine by IPv4. It
// lives as long as its Publisher: what is connected by IPv6 ends with that, and the service sees the
// node as its peer.
type relay struct {
	to     netip.AddrPort
	closer io.Closer // the listener

	mu     sync.Mutex
	closed bool
	peers  map[string]io.Closer
	work   sync.WaitGroup
}

// newRelay begins to relay. Nil without an error: the node has no IPv6. CONFLICT: a process
// has the port by IPv6.
func newRelay(p Publication) (*relay, error) {
	r := &relay{to: p.To, peers: map[string]io.Closer{}}
	address := net.JoinHostPort("::", strconv.Itoa(p.Port))
	var err error
	if p.Protocol == muster.UDP {
		var packets net.PacketConn
		if packets, err = net.ListenPacket("udp6", address); err == nil {
			r.closer = packets
			r.work.Go(func() { r.passPackets(packets) })
		}
	} else {
		var listener net.Listener
		if listener, err = net.Listen("tcp6", address); err == nil {
			r.closer = listener
			r.work.Go(func() { r.accept(listener) })
		}
	}
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, muster.Errorf(muster.Conflict, "a process of this node has port %s by IPv6: publish another one, leave it out for any that is free, or stop that process", p.gate())
	case errors.Is(err, syscall.EAFNOSUPPORT), errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, nil
	}
	return nil, err
}

// close ends the relay and all that is connected by it. Nil is one that never was.
func (r *relay) close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.closed = true
	_ = r.closer.Close()
	for _, peer := range r.peers {
		_ = peer.Close()
	}
	r.mu.Unlock()
	r.work.Wait()
}

// enter notes a peer; false: there are too many, or the relay has ended.
func (r *relay) enter(name string, peer io.Closer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.peers) >= relayPeers {
		return false
	}
	r.peers[name] = peer
	return true
}

func (r *relay) leave(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.peers, name)
}

func (r *relay) accept(listener net.Listener) {
	for {
		caller, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			time.Sleep(100 * time.Millisecond)
			continue
		}
		name := caller.RemoteAddr().String()
		if !r.enter(name, caller) {
			_ = caller.Close()
			continue
		}
		r.work.Go(func() {
			defer r.leave(name)
			defer caller.Close()
			r.pass(caller.(*net.TCPConn))
		})
	}
}

// pass connects a caller with the machine until both have said all.
func (r *relay) pass(caller *net.TCPConn) {
	conn, err := net.DialTimeout("tcp4", r.to.String(), relayConnect)
	if err != nil {
		_ = caller.SetLinger(0) // refused, as far as can be
		return
	}
	service := conn.(*net.TCPConn)
	defer service.Close()
	var both sync.WaitGroup
	one := func(to, from *net.TCPConn) {
		if _, err := io.Copy(to, from); err != nil {
			_ = caller.Close() // the other direction ends too
			_ = service.Close()
			return
		}
		_ = to.CloseWrite()
	}
	both.Go(func() { one(service, caller) })
	both.Go(func() { one(caller, service) })
	both.Wait()
}

// passPackets has a socket of its own to the machine for each sender, by which answers find back.
func (r *relay) passPackets(packets net.PacketConn) {
	buffer := make([]byte, relayPacket)
	senders := map[string]*net.UDPConn{} // those of r.peers, which only this goroutine adds to
	for {
		n, from, err := packets.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		name := from.String()
		if r.gone(name) {
			delete(senders, name)
		}
		if senders[name] == nil {
			if senders[name] = r.answer(packets, from); senders[name] == nil {
				delete(senders, name)
				continue
			}
		}
		_ = senders[name].SetReadDeadline(time.Now().Add(relayIdle))
		_, _ = senders[name].Write(buffer[:n]) // a datagram may get lost
	}
}

func (r *relay) gone(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.peers[name] == nil
}

// answer connects a sender, and passes on what the machine answers until nothing came for a
// while. Nil: there is no room.
func (r *relay) answer(packets net.PacketConn, to net.Addr) *net.UDPConn {
	service, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(r.to))
	if err != nil {
		return nil
	}
	name := to.String()
	if !r.enter(name, service) {
		_ = service.Close()
		return nil
	}
	_ = service.SetReadDeadline(time.Now().Add(relayIdle))
	r.work.Go(func() {
		defer r.leave(name)
		defer service.Close()
		buffer := make([]byte, relayPacket)
		for {
			n, err := service.Read(buffer)
			if errors.Is(err, syscall.ECONNREFUSED) {
				continue // the service is not there just now
			}
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(buffer[:n], to)
		}
	})
	return service
}
