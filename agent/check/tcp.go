package check

import (
	"context"
	"time"

	"github.com/muster-cloud/muster"
)

// tcp connects and hangs up.
func (p *Probe) tcp(ctx context.Context, c muster.Check) Outcome {
	began := time.Now()
	conn, err := p.dial(ctx, "tcp", p.address(c))
	if err != nil {
		return failed(err)
	}
	defer conn.Close()
	return Outcome{muster.CheckOK, "connected to " + p.address(c) + " in " + time.Since(began).Round(time.Microsecond).String()}
}
