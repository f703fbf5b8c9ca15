package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry/auth"
)

const (
	// hereTTL is how long the token is good that a node joins its own machine's server with.
	hereTTL = 5 * time.Minute
	// herePause is the longest pause while a server is waited for.
	herePause = 5 * time.Second
)

// enrolHere has a node that has no credentials join the server of its own machine, by the
// key of that server's first start. A key that was given is the node's own instead, and
// where nobody asks for one it needs none. It waits for a server that does not answer.
func (a *app) enrolHere(ctx context.Context, f *agentFlags, log *slog.Logger) (*target, error) {
	server, _ := a.std.LookupEnv(variableOf("server"))
	refused, level := false, slog.LevelWarn
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, herePause) {
		t := &target{url: a.server, named: a.serverGiven || server != ""}
		err := a.fill(t, nil)
		switch {
		case err != nil || t.key != "" && !t.first:
			return t, err
		case t.first:
			err = f.joinHere(ctx, t, log)
		default:
			err = t.admits(ctx)
		}
		switch code := muster.CodeOf(err); {
		case err == nil, code != muster.Unavailable && code != muster.Unauthenticated:
			return t, err
		case code == muster.Unauthenticated && refused: // a server announces itself before it answers
			return t, notJoined(t, err)
		default:
			refused = code == muster.Unauthenticated
		}
		if refused {
			continue
		}
		log.Log(ctx, level, "the server of this machine does not answer yet; to join one elsewhere, run muster agent --join TOKEN@HOST with the token of muster token create", "server", t.url, "err", err)
		level = slog.LevelDebug // once is enough
		select {
		case <-ctx.Done():
			return t, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func notJoined(t *target, err error) error {
	if t.first {
		return t.explain(err)
	}
	return muster.Errorf(muster.Unauthenticated,
		"%s asks for an access key, and this node has none: run muster token create where there is an ADMIN key, and here muster agent --join TOKEN@HOST", t.url)
}

// admits returns nil when the server asks nobody for a key.
func (t *target) admits(ctx context.Context) error {
	o := t.options(0)
	o.Tries = 1
	api, err := client.New(o)
	if err != nil {
		return err
	}
	defer func() { _ = api.Close() }()
	_, err = api.ServerInfo(ctx)
	return err
}

// joinHere joins the server of this machine, by a token that is made for it.
func (f *agentFlags) joinHere(ctx context.Context, t *target, log *slog.Logger) error {
	api, err := client.New(t.options(0))
	if err != nil {
		return err
	}
	defer func() { _ = api.Close() }()
	ttl := hereTTL
	made, err := api.CreateJoinToken(ctx, muster.CreateJoinTokenInput{TTL: &ttl})
	if err != nil {
		return err
	}
	token, err := auth.ParseJoinToken(made.Text)
	if err != nil {
		return err
	}
	f.credentials, err = agent.Join(ctx, agent.JoinOptions{
		StateDir: f.stateDir, Join: auth.Join{Token: token, Host: t.here.at.Addr().String(), Port: int(t.here.at.Port())},
		ID: muster.NodeID(f.id), UserAgent: agentName(), Logger: log,
	})
	if err != nil {
		_, _ = api.RevokeJoinToken(context.WithoutCancel(ctx), made.JoinToken.ID) // else it ends by itself
	}
	return err
}
