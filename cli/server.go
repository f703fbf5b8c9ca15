package cli

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster/server"
)

const serverLong = `Run the registry: the GraphQL API, the playground, probes and metrics.

On loopback it serves plain HTTP. Everywhere else it serves by TLS, with certificates of
its own, which it renews by itself. It answers only to the host names of loopback and those
of --allowed-hosts; by TLS, also to its own addresses and those of --tls-name.

At its first start it makes an ADMIN key, in admin.key in its data directory. The
commands on this machine find it; others log in, see muster login.`

func (a *app) serverCommand() *cobra.Command {
	var logs logSettings
	o := server.Defaults()
	c := &cobra.Command{
		Use: "server", Short: "Run the registry", Long: serverLong, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := logs.open(a.std.Err)
			if err != nil {
				return err
			}
			o.Logger = log
			return a.runServer(c.Context(), o)
		},
	}
	settings(c.Flags(), func(f *pflag.FlagSet) {
		f.StringVar(&o.DataDir, "data-dir", o.DataDir, "`DIRECTORY` of the database")
		f.StringVar(&o.Listen, "listen", o.Listen, "`ADDRESS` to serve on; port 0 takes any free one")
		serverFlags(f, &o)
		archiveFlags(f, &o.Images)
		limitFlags(f, &o)
		logs.declare(f, slog.LevelInfo)
	})
	newAdminKeyFlag(c.Flags(), &o)
	return c
}

// newAdminKeyFlag is for one start, and so no setting.
func newAdminKeyFlag(f *pflag.FlagSet, o *server.Options) {
	f.BoolVar(&o.NewAdminKey, "new-admin-key", false, "make another ADMIN key, in admin.key in the data directory: for who has none any more")
}

// serverFlags declares the settings of a server that `dev` has too.
func serverFlags(f *pflag.FlagSet, o *server.Options) {
	feedFlags(f, &o.Feed)
	f.BoolVar(&o.Keyless, "keyless", false, "ask nobody for a key: every program on this machine can do everything; only on loopback")
	f.BoolVar(&o.Insecure, "insecure", false, "serve off loopback without TLS: who is on the way can read keys, and change what is said")
	f.BoolVar(&o.TLS, "tls", false, "serve by TLS on loopback too; off loopback it is always so")
	f.StringSliceVar(&o.TLSNames, "tls-name", nil, "further `NAMES` and IP addresses that this server is reached at, for its certificate, separated by commas")
	f.StringVar(&o.TLSCert, "tls-cert", "", "`FILE` with a certificate of your own, and its chain, for people and programs; agents go by the server's own")
	f.StringVar(&o.TLSKey, "tls-key", "", "`FILE` with its private key")
	f.StringSliceVar(&o.AllowedHosts, "allowed-hosts", nil, "further `HOSTS` that are answered to, separated by commas")
	f.StringSliceVar(&o.AllowedOrigins, "allowed-origins", nil, "`ORIGINS` of other web pages that may call, separated by commas")
	f.IntVar(&o.MaxConnections, "max-connections", o.MaxConnections, "connections at once; the rest are refused")
	f.DurationVar(&o.HeartbeatInterval, "heartbeat-interval", o.HeartbeatInterval, "how often agents beat")
	f.DurationVar(&o.UnhealthyAfter, "unhealthy-after", o.UnhealthyAfter, "the silence after which a node is UNHEALTHY")
	f.DurationVar(&o.PruneAfter, "prune-after", o.PruneAfter, "the silence after which a node is pruned")
	f.DurationVar(&o.BrakeMax, "brake-max", o.BrakeMax, "how long at most nobody is pruned because too many fell silent together")
	f.DurationVar(&o.TombstoneTTL, "tombstone-ttl", o.TombstoneTTL, "how long a pruned node can return as itself")
	f.DurationVar(&o.SweepInterval, "sweep-interval", o.SweepInterval, "how often silence is looked for")
	f.Var(&prefixValue{&o.InstanceNetwork}, "instance-network", "`NETWORK` of the instances; each node gets a /24 of it")
	f.DurationVar(&o.AddressRest, "address-rest", o.AddressRest, "how long an instance's address stays unused after it")
	f.Float64Var(&o.CPUOvercommit, "cpu-overcommit", o.CPUOvercommit, "CPU promised for each CPU that there is")
	f.IntVar(&o.PublishFrom, "publish-from", o.PublishFrom, "the lowest port of nodes that services get which ask for none")
	f.IntVar(&o.PublishTo, "publish-to", o.PublishTo, "the highest one")
	f.IntVar(&o.QueueMax, "queue-max", o.QueueMax, "instances that may wait for a node")
	f.IntVar(&o.LogReaders, "log-readers", o.LogReaders, "logs of instances that are read at a time")
	f.IntVar(&o.LogReadersPerNode, "log-readers-per-node", o.LogReadersPerNode, "logs of one node's instances that are read at a time")
	f.Int64Var(&o.ImageReserve, "image-reserve", o.ImageReserve, "bytes that an import of an image leaves free on the disk")
	f.IntVar(&o.RetainChanges, "retain-changes", o.RetainChanges, "changes that are kept to resume from")
	f.DurationVar(&o.RetainFor, "retain-for", o.RetainFor, "how long changes are kept to resume from")
	f.DurationVar(&o.RetainAudit, "retain-audit", o.RetainAudit, "how long the audit is kept, and keys and tokens that have ended")
	f.DurationVar(&o.RequestTTL, "request-ttl", o.RequestTTL, "how long a request id is remembered")
	f.DurationVar(&o.TerminatedTTL, "terminated-ttl", o.TerminatedTTL, "how long a terminated instance is shown")
	f.DurationVar(&o.FlushInterval, "flush-interval", o.FlushInterval, "how often it is stored when nodes were last seen, and the log is compacted")
}

// feedFlags declares the settings of the discovery feed.
func feedFlags(f *pflag.FlagSet, o *server.FeedOptions) {
	f.StringVar(&o.Publish, "registration-publish", "jetstream", "how entries are published: jetstream, nats (best effort) or noop (not at all)")
	f.StringVar(&o.Stream, "registration-stream", "REGISTRATION", "`NAME` of the stream")
	f.IntVar(&o.Replicas, "registration-replicas", 0, "replicas of the stream: 1 to 5; 0: as it is, or 1")
	f.DurationVar(&o.MaxAge, "registration-max-age", 0, "how long an entry without a time to live lives; 0: as it is, or 24h")
	f.StringVar(&o.URL, "nats-url", "", "`URL` of an existing NATS server or cluster, instead of the one in this process")
	f.StringVar(&o.Context, "nats-context", "", "a context of the nats command, its `NAME` or file, that says which server, and as whom")
	f.StringVar(&o.Credentials, "nats-creds", "", "`FILE` with a NATS user's JWT and seed")
	f.StringVar(&o.Listen, "nats-listen", "", "`ADDRESS` at which others reach the NATS server of this process; empty: nobody does")
	f.StringVar(&o.TokenFile, "nats-token-file", "", "`FILE` with the token that they present")
}

// limitFlags declares the limits of GraphQL.
func limitFlags(f *pflag.FlagSet, o *server.Options) {
	l := &o.Limits
	f.DurationVar(&o.OperationTime, "operation-time", o.OperationTime, "how long an operation, or one event of a subscription, may take")
	f.DurationVar(&o.PingInterval, "ping-interval", o.PingInterval, "how often a WebSocket is asked whether it lives; two pings without an answer are its end")
	f.Int64Var(&l.Body, "max-body", l.Body, "bytes of a request")
	f.Int64Var(&l.AgentBody, "max-agent-body", l.AgentBody, "bytes of an agent's report")
	f.IntVar(&l.Tokens, "max-tokens", l.Tokens, "tokens of a document")
	f.IntVar(&l.Depth, "max-depth", l.Depth, "nested selections of an operation")
	f.IntVar(&l.Fields, "max-fields", l.Fields, "fields of an operation, its fragments spread")
	f.IntVar(&l.Aliases, "max-aliases", l.Aliases, "aliases of an operation")
	f.IntVar(&l.RootFields, "max-root-fields", l.RootFields, "root fields of an operation")
	f.IntVar(&l.Directives, "max-directives", l.Directives, "directives of an operation")
	f.IntVar(&l.Complexity, "max-complexity", l.Complexity, "fields that an answer may have, each list counted in full")
	f.IntVar(&l.Operations, "max-operations", l.Operations, "operations live on one WebSocket")
	f.IntVar(&l.Connections, "max-websockets", l.Connections, "WebSockets in all")
	f.IntVar(&l.ConnectionsPerPrincipal, "max-websockets-each", l.ConnectionsPerPrincipal, "WebSockets of one caller")
	f.IntVar(&l.Streams, "max-streams", l.Streams, "live subscriptions in all")
}

// openServer opens a server, and warns when others could listen in.
func (a *app) openServer(ctx context.Context, o server.Options) (*server.Server, error) {
	o.Version = version
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if at := o.InsecureAt(); at != "" {
		a.say("WARNING: --insecure: what is said to %s is not encrypted, so whoever is on the way can read access keys, and use them", at)
	}
	return server.Open(ctx, o)
}

// runServer serves until ctx ends.
func (a *app) runServer(ctx context.Context, o server.Options) (err error) {
	s, err := a.openServer(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	defer a.announce(s, o, o.Logger)()
	return asUnit(ctx, o.Logger, func(ctx context.Context, ready func(net.Addr)) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var telling sync.WaitGroup
		telling.Go(func() {
			select {
			case <-s.Serving():
				ready(s.Addr())
			case <-ctx.Done():
			}
		})
		err := s.Run(ctx)
		stop()
		telling.Wait()
		return err
	})
}

// prefixValue is a flag with an IP network in it.
type prefixValue struct{ prefix *netip.Prefix }

func (v *prefixValue) Type() string { return "network" }

func (v *prefixValue) String() string {
	if v.prefix == nil || !v.prefix.IsValid() {
		return ""
	}
	return v.prefix.String()
}

func (v *prefixValue) Set(text string) error {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return errors.New("it is not a network such as 10.213.0.0/16")
	}
	*v.prefix = prefix.Masked()
	return nil
}
