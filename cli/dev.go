package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/client"
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
		f.StringVar(&d.agent.id, "id", "", "`NAME` of this node; the hostname when left out")
		f.BoolVar(&d.launch, "launch", false, "launch a first instance, named hello, if it does not run")
		f.BoolVar(&d.ephemeral, "ephemeral", false, "at the end terminate every instance")
		serverFlags(f, &d.server)
		nodeFlags(f, &d.agent)
		logs.declare(f, slog.LevelWarn)
	})
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
	url := "http://" + reachable(s.Addr())
	api, err := client.New(client.Options{URL: url, UserAgent: "muster-dev/" + version})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.Close()) }()
	t := &tour{app: a, flags: d, api: api, url: url, before: make(chan string, 1)}
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
	api     *client.Client
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
	return portInUse(t.flags.agent.run(ctx, t.api, log), t.flags.agent.listen, "--agent-listen")
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
