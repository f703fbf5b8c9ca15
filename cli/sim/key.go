package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-cloud/muster"
)

// revokeTime is how long the end of the agents' key may take.
const revokeTime = 10 * time.Second

// agentsKey makes a key for the agents' nodes and no others, which giveBack revokes. Where
// the simulation presents no key, the agents need none.
func (s *simulation) agentsKey(ctx context.Context) (text string, giveBack func(), err error) {
	if s.o.Server.Key == "" {
		return "", func() {}, nil
	}
	in := muster.CreateAccessKeyInput{Name: s.o.Prefix, Role: muster.NodeAgent, Scope: &muster.KeyScope{Nodes: []string{s.o.Prefix + "-*"}}}
	if s.o.Duration > 0 { // should nothing be left to revoke it
		in.ExpiresAt = new(time.Now().Add(s.o.Duration + s.o.Ramp + time.Hour))
	}
	made, err := s.api.CreateAccessKey(ctx, in)
	switch {
	case err != nil:
		return "", nil, muster.Errorf(muster.CodeOf(err), "make a key for the agents: %w", err)
	case made.Text == nil:
		return "", nil, fmt.Errorf("make a key for the agents: the server did not show it")
	}
	return *made.Text, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTime)
		defer cancel()
		if _, err := s.api.RevokeAccessKey(ctx, made.AccessKey.ID); err != nil {
			s.o.Logger.Warn("the agents' key is left: revoke it", "key", made.AccessKey.ID, "err", err)
		}
	}, nil
}
