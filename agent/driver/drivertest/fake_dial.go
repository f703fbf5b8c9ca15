package drivertest

import (
	"context"
	"fmt"
	"net"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// DialMachine connects from here, while the machine runs: machines of a Fake have no network of
// their own.
func (f *Fake) DialMachine(ctx context.Context, machine, network, address string) (net.Conn, error) {
	f.host.mu.Lock()
	m, ok := f.host.machines[machine]
	running := ok && m.status.State == driver.Running
	f.host.mu.Unlock()
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: %s", driver.ErrNotFound, machine)
	case !running:
		return nil, muster.Errorf(muster.Conflict, "the machine %s does not run", machine)
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}
