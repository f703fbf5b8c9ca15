package cli

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/artifact"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/agent/network"
	"github.com/muster-cloud/muster/agent/nspawn"
	"github.com/muster-cloud/muster/archive"
	"github.com/muster-cloud/muster/client"
)

const agentLong = `Run the agent of this machine: it registers with the server, keeps the instances
that the server placed here, and beats. They run on when it ends, and the next
agent adopts them. It needs root.

A new machine joins with a token: run muster token create where there is an ADMIN key,
and here muster agent --join TOKEN@HOST. What it gets is kept in --state-dir, so from
then on muster agent alone is enough.`

// agentFlags are the settings of an agent.
type agentFlags struct {
	id, listen, advertise, stateDir, cgroupPrefix string
	role, launcher, resolvConf                    string
	advertisePort, cpus, memory                   int
	labels                                        map[string]string
	images                                        archive.Limits
	imageKeep, grace                              time.Duration
	artifactLimit, artifactKeep                   int64 // bytes
	nodeRoutes, masquerade                        bool
	hostPaths                                     []string // of this machine, that instances may see
	join                                          string
	credentials                                   *agent.Credentials // nil: it has not joined
}

func (a *app) agentCommand() *cobra.Command {
	var logs logSettings
	var flags agentFlags
	c := &cobra.Command{
		Use: "agent", Short: "Run the agent of this machine", Long: agentLong, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			flags.hideToken()
			log, err := logs.open(a.std.Err)
			if err != nil {
				return err
			}
			if flags.stateDir, err = filepath.Abs(flags.stateDir); err != nil {
				return usageError("--state-dir cannot be found: %w", err)
			}
			if err := flags.examine(c.Context(), log); err != nil {
				return err
			}
			api, err := a.agentClient(c, &flags, log)
			if err != nil {
				return err
			}
			return portInUse(flags.run(c.Context(), api, log), flags.listen, "--listen")
		},
	}
	settings(c.Flags(), func(f *pflag.FlagSet) {
		f.StringVar(&flags.id, "id", "", "`NAME` of this node; when left out the one that it joined by, else the hostname")
		f.StringVar(&flags.join, "join", "", "`TOKEN@HOST[:PORT]` to join a server with; nothing where this machine did already")
		f.StringVar(&flags.listen, "listen", agent.DefaultListen, "`ADDRESS` that the server's nudges are taken on; where the node joined, its own on the way to the server")
		f.StringVar(&flags.advertise, "advertise-addr", "", "IP `ADDRESS` that this node is reached at; that of --listen when left out")
		f.IntVar(&flags.advertisePort, "advertise-port", 0, "`PORT` that this node is reached at; 0: that of --listen")
		f.StringVar(&flags.stateDir, "state-dir", defaultStateDir, "`DIRECTORY` of instances and images")
		f.StringVar(&flags.role, "role", string(muster.Compute), "`ROLE` of this node: COMPUTE runs instances, SERVICE does not")
		nodeFlags(f, &flags)
		archiveFlags(f, &flags.images)
		logs.declare(f, slog.LevelInfo)
	})
	alias(c.Flags().Lookup("advertise-addr"), "AGENT_ADVERTISE_ADDR")
	return c
}

// nodeFlags declares the settings of an agent that `dev` has too.
func nodeFlags(f *pflag.FlagSet, flags *agentFlags) {
	f.IntVar(&flags.cpus, "cpus", 0, "CPUs for instances; 0: those of this machine")
	f.IntVar(&flags.memory, "memory", 0, "`MIB` of memory for instances; 0: this machine's less a tenth")
	f.StringToStringVar(&flags.labels, "label", nil, "labels `KEY=VALUE` of this node, separated by commas")
	launcherFlags(f, flags)
	f.StringSliceVar(&flags.hostPaths, "allow-host-path", nil, "a `PATH` of this machine's files that instances may have as a volume, with what is below it; may be repeated, or several separated by commas")
	f.DurationVar(&flags.grace, "stop-grace", 10*time.Second, "how long an instance that is stopped has before it is killed")
	f.BoolVar(&flags.nodeRoutes, "node-routes", true, "route to the instances of other nodes that are in a network of this machine's; false: that is for you to do")
	f.BoolVar(&flags.masquerade, "masquerade", true, "have what instances send out of the cluster come from this machine's address; false: it has theirs")
	f.Int64Var(&flags.artifactLimit, "artifact-limit", artifact.DefaultLimit, "bytes that the files of a service may have before they are unpacked")
	f.Int64Var(&flags.artifactKeep, "artifact-keep", artifact.DefaultKeep, "bytes of the files of services that are kept here, so that they start again without the place that those came from; 0: none are")
	f.DurationVar(&flags.imageKeep, "image-keep", 24*time.Hour, "how long an image of the server's that nothing uses is kept here")
}

// launcherFlags declares how instances are started.
func launcherFlags(f *pflag.FlagSet, flags *agentFlags) {
	f.StringVar(&flags.launcher, "launcher", string(nspawn.Auto), "`WHO` starts instances: systemd, as units; direct, the agent itself; auto: systemd where it runs this machine")
	f.StringVar(&flags.cgroupPrefix, "cgroup-prefix", "muster", "`NAME` of the cgroup, or systemd's slice, that the instances' cgroups are in")
	f.StringVar(&flags.resolvConf, "resolv-conf", nspawn.ResolvAuto, "`FILE` that instances get as /etc/resolv.conf; auto: this machine's name servers but those on loopback; off: the image's own")
}

// portInUse names the flag that helps when err is that the agent's port is taken.
func portInUse(err error, address, flag string) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return muster.Errorf(muster.Conflict, "the agent cannot listen on %s: the port is in use; stop what uses it, or choose another with %s", address, flag)
	}
	return err
}

// examine refuses what no agent could work with, before any server hears of it.
func (f *agentFlags) examine(ctx context.Context, log *slog.Logger) (err error) {
	if f.cpus < 0 || f.memory < 0 {
		return usageError("--cpus and --memory cannot be negative; leave them out for what this machine has")
	}
	if f.hostPaths, err = cleanHostPaths(f.hostPaths); err != nil {
		return err
	}
	return f.machines(log).Check(ctx)
}

// run is an agent at work until ctx ends. It was examined.
func (f *agentFlags) run(ctx context.Context, api *client.Client, log *slog.Logger) error {
	machines := f.machines(log)
	publisher := network.NewPublisher(machines.Network(), network.PublisherOptions{Logger: log})
	defer func() { _ = publisher.Close() }()
	return asUnit(ctx, log, func(ctx context.Context, ready func(net.Addr)) error {
		one, err := agent.New(agent.Options{
			Driver: machines, Registry: api, Credentials: f.credentials, Router: f.router(machines, log), Images: f.puller(api, log), StateDir: f.stateDir, ID: muster.NodeID(f.id),
			Listen: f.listen, Advertise: f.advertise, AdvertisePort: f.advertisePort, CPUs: f.cpus, MemoryMB: f.memory,
			Role: muster.NodeRole(strings.ToUpper(f.role)), Labels: f.labels, Version: version, Ready: ready, Logger: log,
			Grace: f.grace, Reached: failpoint.FromEnvironment(),
			Deploy: deploy.Options{Fetch: f.artifacts(log), Ports: nodePorts{publisher}},
		})
		if err != nil {
			return err
		}
		return one.Run(ctx)
	})
}

// artifacts fetches the files of services, and keeps them.
func (f *agentFlags) artifacts(log *slog.Logger) *artifact.Fetcher {
	keep := f.artifactKeep
	if keep <= 0 {
		keep = -1
	}
	return artifact.New(artifact.Options{
		Dir: filepath.Join(f.stateDir, "artifacts"), Keep: keep, Limit: f.artifactLimit, HostPaths: f.hostPaths, Logger: log,
	})
}
