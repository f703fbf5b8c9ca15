package nspawn

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// DialMachine implements driver.Dialer. A socket belongs to the network that its thread is in when it is made.
func (d *Driver) DialMachine(ctx context.Context, name, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil { // a name would be looked up by other threads, elsewhere
		return nil, muster.InvalidField("address", "%.80q is no IP address with a port", address)
	}
	_, p, err := d.runningMachine(ctx, name)
	if err != nil {
		return nil, err
	}
	pidfd, err := p.Leader.open()
	if err != nil {
		return nil, err
	}
	if pidfd < 0 {
		return nil, muster.Errorf(muster.Conflict, "%w", errMachineEnded)
	}
	defer unix.Close(pidfd)
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with it
		var r result
		if err := unix.Setns(pidfd, unix.CLONE_NEWNET); err != nil {
			r.err = fmt.Errorf("enter the network of %s: %w", name, err)
		} else {
			r.conn, r.err = new(net.Dialer).DialContext(ctx, network, address)
		}
		done <- r
	}()
	r := <-done
	return r.conn, r.err
}
