package agent

import (
	"context"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

// Renewer is what a Registry may have beside: it renews a node's certificate.
// *client.Client has it.
type Renewer interface {
	RenewCertificate(ctx context.Context, csr string) (*muster.Certificates, error)
}

const (
	// renewLook is how often the wall clock is looked at, which a timer does not follow.
	renewLook = time.Hour
	// renewPause is the longest between two tries; there are ten days for them.
	renewPause = time.Hour
	// renewLeast is the shortest between two renewals, whatever the clocks say.
	renewLeast = time.Minute
)

// renew gets the node a new certificate after two thirds of each one's life. Calls that
// the server makes from then on meet the new one.
func (a *Agent) renew(ctx context.Context) error {
	registry, ok := a.o.Registry.(Renewer)
	if !ok || !a.o.Credentials.Secure() {
		return nil
	}
	p := a.newPauses()
	for wait := a.untilRenewal(); sleep(ctx, wait, nil); {
		if wait = a.untilRenewal(); wait > 0 {
			continue
		}
		err := a.renewOnce(ctx, registry)
		switch {
		case err == nil:
			p.reset()
			wait = max(a.untilRenewal(), renewLeast)
			continue
		case ctx.Err() != nil:
			return nil
		}
		wait = p.next(renewPause)
		a.o.Logger.Warn("the node's certificate was not renewed", "node", a.o.ID, "err", err, "again_in", wait)
	}
	return nil
}

// untilRenewal is how long to wait before the next look. A certificate that is not valid
// yet was issued by a clock that was wrong.
func (a *Agent) untilRenewal() time.Duration {
	own, err := a.o.Credentials.own()
	if err != nil || time.Now().Before(own.Leaf.NotBefore) {
		return 0
	}
	return min(max(time.Until(auth.RenewAt(own.Leaf)), 0), renewLook)
}

func (a *Agent) renewOnce(ctx context.Context, registry Renewer) error {
	csr, err := auth.NewRequest(a.o.Credentials.key)
	if err != nil {
		return err
	}
	issued, err := registry.RenewCertificate(ctx, csr)
	if err != nil {
		return err
	}
	if err := a.o.Credentials.keep(*issued); err != nil {
		return err
	}
	a.o.Logger.Info("the node has a new certificate", "node", a.o.ID)
	return nil
}
