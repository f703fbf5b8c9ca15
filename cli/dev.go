package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/local"
	"github.com/muster-cloud/muster/server"
)

const devLong = `Run a server and an agent in one process, to try things on this machine. All of
it is in one directory. Without root there is no agent, so nothing can be launched;
the rest works.

Ctrl-C stops both. Instances run on, and the next muster dev finds them, unless
--ephemeral ends them.`

// devFlags are the settings of `dev`.
type devFlags struct {
	dir       string
	server    server.Options
	agent     agentFlags
	launch    bool
	ephemeral bool
}

func (a *app) devCommand() *cobra.Command {
	var logs logSettings
	d := devFlags{server: server.Defaults()}
	c := &cobra.Command{
		Use: "dev", Short: "Run a server and an agent here, to try things", Long: devLong, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := logs.open(a.std.Err)
			if err != nil {
				return err
			}
			return a.dev(c.Context(), d, log)
		},
	}
	settings(c.Flags(), func(f *pflag.FlagSet) {
		f.StringVar(&d.dir, "data-dir", ".muster", "`DIRECTORY` of everything")
		f.StringVar(&d.server.Listen, "listen", d.server.Listen, "`ADDRESS` of the server; port 0 takes any free one")
		f.StringVar(&d.agent.listen, "agent-listen", agent.DefaultListen, "`ADDRESS` of the agent; port 0 takes any free one")
		f.StringVar(&d.agent.id, "id", "", "`NAME` of this node; when left out the one that it joined by, else the hostname")
		f.BoolVar(&d.launch, "launch", false, "launch a first instance, named hello, if it does not run")
		f.BoolVar(&d.ephemeral, "ephemeral", false, "at the end terminate every instance")
		serverFlags(f, &d.server)
		nodeFlags(f, &d.agent)
		logs.declare(f, slog.LevelWarn)
	})
	newAdminKeyFlag(c.Flags(), &d.server)
	alias(c.Flags().Lookup("ephemeral"), "EPHEMERAL")
	return c
}

// dev runs it all until ctx ends.
func (a *app) dev(ctx context.Context, d devFlags, log *slog.Logger) (err error) {
	dir, err := filepath.Abs(d.dir)
	if err != nil {
		return usageError("--data-dir %s cannot be found: %w", quote(d.dir), err)
	}
	d.dir, d.server.DataDir, d.agent.stateDir = dir, filepath.Join(dir, "server"), filepath.Join(dir, "agent")
	d.server.Logger = log
	s, err := a.openServer(ctx, d.server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	defer a.announce(s, d.server, log)()
	t := &tour{app: a, flags: d, url: s.URL(), before: make(chan string, 1)}
	t.prepare(ctx)
	return t.run(ctx, s, log)
}

// reachable is the address to reach a listener at from this machine.
func reachable(addr net.Addr) string {
	at, err := netip.ParseAddrPort(addr.String())
	if err == nil && at.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port()).String()
	}
	return addr.String()
}

// tour is what a person sees of `dev`: what happened, and where to look.
type tour struct {
	*app
	flags   devFlags
	api     *client.Client // with the key of the first start, once the server serves
	to      *target
	url     string
	missing error       // why there is no agent; nil: there is one
	image   string      // what became of the image minimal
	before  chan string // gets the cursor from before the agent began
}

// run starts server and agent, tells about them, and stops them in the reverse
// order once ctx ends or one of them fails.
func (t *tour) run(ctx context.Context, s *server.Server, log *slog.Logger) error {
	group, failed := errgroup.WithContext(ctx)
	serving, stopServer := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServer()
	working, stopAgent := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAgent()
	agentDone := make(chan struct{})
	end := "it failed"
	group.Go(func() error { return s.Run(serving) })
	if err := t.comeIn(failed, s); err != nil {
		stopServer()
		return cmp.Or(group.Wait(), err)
	}
	defer func() { _ = t.api.Close() }()
	group.Go(func() error {
		defer close(agentDone)
		return t.work(working, log)
	})
	group.Go(func() (err error) {
		defer stopServer()
		defer func() { stopAgent(); <-agentDone }()
		t.tell(failed)
		<-failed.Done()
		if ctx.Err() != nil {
			end, err = t.farewell(context.WithoutCancel(ctx))
		}
		return err
	})
	err := group.Wait()
	t.print("stopped: %s", end)
	return err
}

// work is the agent, if there is one. Before it begins it notes where the history
// stands, so that whoever waits for its registration cannot miss it.
func (t *tour) work(ctx context.Context, log *slog.Logger) error {
	if t.missing != nil {
		return nil
	}
	info, err := t.api.ServerInfo(ctx)
	if err != nil {
		return err
	}
	t.before <- info.Cursor
	if err := t.flags.agent.examine(ctx, log); err != nil {
		return err
	}
	api, err := t.enrol(ctx, log)
	if err != nil {
		return err
	}
	return portInUse(t.flags.agent.run(ctx, api, log), t.flags.agent.listen, "--agent-listen")
}

// comeIn waits until the server serves, and makes a client with the key of its first
// start, if it asks for one.
func (t *tour) comeIn(ctx context.Context, s *server.Server) error {
	select {
	case <-s.Serving():
	case <-ctx.Done():
		return ctx.Err()
	}
	at, err := netip.ParseAddrPort(strings.TrimPrefix(strings.TrimPrefix(t.url, "https://"), "http://"))
	if err != nil {
		return err
	}
	t.to = &target{url: t.url, here: &here{Server: local.Server{CAFile: s.CAFile()}, at: at}}
	if !t.flags.server.Keyless {
		path := server.AdminKeyFile(t.flags.server.DataDir)
		if err := t.to.takeFirst(path); err != nil {
			return err
		}
		if t.to.key == "" {
			return usageError("%s has no key: put an ADMIN key into it, or start once with --new-admin-key to have another one made", path)
		}
	}
	if err := t.findTrust(t.to, nil); err != nil {
		return err
	}
	o := t.to.options(0)
	o.UserAgent = "muster-dev/" + version
	t.api, err = client.New(o)
	return err
}

// enrol returns the agent's client: with its own credentials, once it has joined.
func (t *tour) enrol(ctx context.Context, log *slog.Logger) (*client.Client, error) {
	f := &t.flags.agent
	if t.flags.server.Keyless {
		return t.api, nil
	}
	if err := f.enrol(ctx, log); err != nil {
		return nil, err
	}
	if f.credentials == nil {
		if err := f.joinHere(ctx, t.to, log); err != nil {
			return nil, err
		}
	}
	return f.clientOf(t.url)
}

// prepare makes sure that an agent can work here, or notes why not.
func (t *tour) prepare(ctx context.Context) {
	if os.Geteuid() != 0 {
		t.missing = fmt.Errorf("it needs root; try sudo %s dev", t.std.Program)
		return
	}
	if t.missing = t.flags.agent.check(ctx); t.missing != nil {
		return
	}
	began := time.Now()
	_, err := imagesIn(t.flags.agent.stateDir).BuildMinimal(ctx, "")
	switch muster.CodeOf(err) {
	case "":
		t.image = fmt.Sprintf("%s, made in %s", image.Minimal, took(began))
	case muster.AlreadyExists:
		t.image = image.Minimal
	default:
		t.image = "none: " + oneLine(err.Error())
	}
}
