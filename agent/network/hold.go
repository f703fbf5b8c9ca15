package network

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// hold takes a port of the node without listening on it, so that no process of the node can. CONFLICT: one has.
func hold(g gate) (int, error) {
	kind := unix.SOCK_STREAM
	if g.protocol == muster.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("hold port %s: %w", g, err)
	}
	if g.protocol == muster.TCP { // connections that linger are nobody's
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: g.port})
	}
	if err == nil && g.protocol == muster.TCP { // from now on others get it no more
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
	}
	if errors.Is(err, unix.EADDRINUSE) {
		err = muster.Errorf(muster.Conflict, "a process of this node has port %s: publish another one, leave it out for any that is free, or stop that process", g)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func release(held int) {
	if held >= 0 {
		unix.Close(held)
	}
}
