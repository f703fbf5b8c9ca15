package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// Probe is how to look at a service where it runs.
type Probe struct {
	Addr netip.Addr // of the service; default 127.0.0.1
	Port int        // of the service, where a check has none of its own
	// Dial connects from where the address lives. An error that is driver.ErrNotFound or CONFLICT says that
	// nobody could look there. Default: from here.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Exec runs a command in the service's instance and returns once nothing of it is left, also when ctx ends. Default:
	// there is no way to.
	Exec func(ctx context.Context, command []string, output io.Writer) (driver.Exit, error)
}

// Outcome is what one run found.
type Outcome struct {
	Status muster.CheckStatus
	Output string // at most muster.MaxOutputBytes of valid UTF-8
}

// Run runs a check: as often as it may try until it is OK. The last try counts. A
// TTL check cannot be run. When ctx ends, what was found so far is UNKNOWN.
func (p *Probe) Run(ctx context.Context, c muster.Check) Outcome {
	c = c.WithDefaults()
	for try := 1; ; try++ {
		o := p.try(ctx, c)
		o.Output = muster.Storable(o.Output, muster.MaxOutputBytes)
		if o.Status == muster.CheckOK || try >= c.Tries || !sleep(ctx, c.Pause) {
			return o
		}
	}
}

// try looks once, for as long as the check may take.
func (p *Probe) try(ctx context.Context, c muster.Check) Outcome {
	bounded, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	var o Outcome
	switch c.Kind {
	case muster.ExecCheck:
		o = p.exec(bounded, c)
	case muster.HTTPCheck:
		o = p.http(bounded, c)
	case muster.TCPCheck:
		o = p.tcp(bounded, c)
	default:
		return unknown(fmt.Sprintf("a check of the kind %s is not run by the agent", c.Kind))
	}
	switch {
	case ctx.Err() != nil:
		return unknown("it was given up: the agent or its service is stopping")
	case bounded.Err() != nil && o.Status != muster.CheckOK:
		return Outcome{muster.CheckCritical, fmt.Sprintf("it took longer than %s\n%s", c.Timeout, o.Output)}
	}
	return o
}

func (p *Probe) address(c muster.Check) string {
	host := "127.0.0.1"
	if p.Addr.IsValid() {
		host = p.Addr.String()
	}
	port := c.Port
	if port == 0 {
		port = p.Port
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

func (p *Probe) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if p.Dial == nil {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return p.Dial(ctx, network, address)
}

// failed is what an error says of a service: bad, unless nobody could look.
func failed(err error) Outcome {
	if errors.Is(err, driver.ErrNotFound) || muster.CodeOf(err) == muster.Conflict {
		return unknown(err.Error())
	}
	return Outcome{muster.CheckCritical, err.Error()}
}

func unknown(why string) Outcome { return Outcome{muster.CheckUnknown, why} }

// sleep waits; false: ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
