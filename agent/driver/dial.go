package driver

import (
	"context"
	"net"
)

// Dialer is the optional ability to connect to addresses where a machine's
// network is.
type Dialer interface {
	// DialMachine connects from inside the machine's network to an IP address and a port. ErrNotFound: there is no such
	// machine; CONFLICT: it does not run.
	DialMachine(ctx context.Context, machine, network, address string) (net.Conn, error)
}
