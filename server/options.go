package server

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/archive"
	"github.com/muster-cloud/muster/graph/transport"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/images"
	"github.com/muster-cloud/muster/registry/liveness"
	"github.com/muster-cloud/muster/registry/scheduler"
)

// The defaults of Options that commands name in their help.
const (
	DefaultDataDir = "/var/lib/muster-server"
	DefaultListen  = "127.0.0.1:9000"
)

// Options are the settings of a server. The zero value works.
type Options struct {
	Version string // what serverInfo says; "dev"

	DataDir        string   // where the database is; DefaultDataDir
	Listen         string   // address and port; DefaultListen. Port 0: any free one
	Insecure       bool     // serves off loopback without TLS; false
	Keyless        bool     // asks nobody for a key, on loopback alone; false
	NewAdminKey    bool     // makes another ADMIN key at the start, in place of that of the first one; false
	TLS            bool     // by TLS on loopback too; false: where other machines can come from
	TLSNames       []string // further names and IPs that the server is reached at, for its certificate; none
	TLSCert        string   // a file: a certificate of one's own for who is no member of the cluster; empty: issued here
	TLSKey         string   // a file: its private key
	AllowedHosts   []string // Host headers that are served beside those of loopback; none
	AllowedOrigins []string // web pages of other origins that may call, such as https://ops.example; none
	MaxConnections int      // connections at once, the rest get 503; 8192

	HeartbeatInterval time.Duration // how often agents beat; 10 s
	UnhealthyAfter    time.Duration // the silence after which a node is UNHEALTHY; 30 s
	PruneAfter        time.Duration // the silence after which a node is pruned; 5 min
	BrakeMax          time.Duration // how long the brake holds at most; 30 min
	SweepInterval     time.Duration // how often silence is looked for; 1 s
	TombstoneTTL      time.Duration // how long a pruned node can return as itself; 72 h

	InstanceNetwork netip.Prefix  // each node gets a /24 of it; 10.213.0.0/16
	AddressRest     time.Duration // how long an instance's address stays unused after it; 2 min
	CPUOvercommit   float64       // CPU promised per CPU there is; 2
	PublishFrom     int           // the lowest port of nodes that services get which ask for none; 30000
	PublishTo       int           // the highest one; 32767
	QueueMax        int           // instances that may wait for a node; 1,000

	LogReaders        int // logs of instances that are read at a time; 256
	LogReadersPerNode int // the same, of one node; 16

	RetainChanges int           // changes that are kept; 100,000
	RetainFor     time.Duration // how long changes are kept; 72 h
	RequestTTL    time.Duration // how long a requestId is remembered; 24 h
	TerminatedTTL time.Duration // how long a terminated instance is shown; 1 h
	RetainAudit   time.Duration // how long the audit, and keys and tokens that have ended, are kept; 90 days
	FlushInterval time.Duration // how often is stored when nodes were last seen, and the log compacted; 1 min

	Images       archive.Limits // of images that are imported; each as archive.Limits says
	ImageReserve int64          // bytes that an import leaves free on the disk; 256 MiB

	Feed FeedOptions // the discovery feed

	Limits        transport.Limits // of GraphQL; each as transport.Limits says
	OperationTime time.Duration    // how long an operation of GraphQL may take; 30 s
	PingInterval  time.Duration    // how often a WebSocket is asked whether it lives; 20 s

	Now    func() time.Time // what certificates go by; time.Now
	Logger *slog.Logger     // slog.Default()
}

// registry returns the settings that are the registry's own.
func (o Options) registry() registry.Options {
	return registry.Options{
		Version: o.Version,
		Liveness: liveness.Options{
			Interval: o.HeartbeatInterval, UnhealthyAfter: o.UnhealthyAfter, PruneAfter: o.PruneAfter, BrakeMax: o.BrakeMax,
		},
		Scheduler:       scheduler.Options{CPUOvercommit: o.CPUOvercommit},
		InstanceNetwork: o.InstanceNetwork,
		AddressRest:     o.AddressRest,
		SweepInterval:   o.SweepInterval,
		Tombstone:       o.TombstoneTTL,
		FlushInterval:   o.FlushInterval,
		MaxPending:      o.QueueMax,
		PublishFrom:     o.PublishFrom,
		PublishTo:       o.PublishTo,
		KeepAudit:       o.RetainAudit,
		LogReaders:      o.LogReaders, LogReadersPerNode: o.LogReadersPerNode,
		RequestTTL:     o.RequestTTL,
		TerminatedTTL:  o.TerminatedTTL,
		KeepChanges:    o.RetainChanges,
		KeepChangesFor: o.RetainFor,
		Insecure:       o.InsecureAt(),
	}
}

// withDefaults returns the options with every default filled in.
func (o Options) withDefaults() Options {
	orString(&o.Version, "dev")
	orString(&o.DataDir, DefaultDataDir)
	orString(&o.Listen, DefaultListen)
	orNumber(&o.MaxConnections, 8192)
	orNumber(&o.HeartbeatInterval, liveness.DefaultInterval)
	orNumber(&o.UnhealthyAfter, liveness.DefaultUnhealthyAfter)
	orNumber(&o.PruneAfter, liveness.DefaultPruneAfter)
	orNumber(&o.BrakeMax, liveness.DefaultBrakeMax)
	orNumber(&o.SweepInterval, registry.DefaultSweepInterval)
	orNumber(&o.TombstoneTTL, registry.DefaultTombstone)
	orNumber(&o.AddressRest, registry.DefaultAddressRest)
	orNumber(&o.CPUOvercommit, scheduler.DefaultCPUOvercommit)
	orNumber(&o.QueueMax, registry.DefaultMaxPending)
	orNumber(&o.LogReaders, registry.DefaultLogReaders)
	orNumber(&o.LogReadersPerNode, registry.DefaultLogReadersNode)
	orNumber(&o.PublishFrom, registry.DefaultPublishFrom)
	orNumber(&o.PublishTo, registry.DefaultPublishTo)
	orNumber(&o.RetainAudit, registry.DefaultKeepAudit)
	orNumber(&o.RetainChanges, registry.DefaultKeepChanges)
	orNumber(&o.RetainFor, registry.DefaultKeepChangesFor)
	orNumber(&o.RequestTTL, registry.DefaultRequestTTL)
	orNumber(&o.TerminatedTTL, registry.DefaultTerminatedTTL)
	orNumber(&o.FlushInterval, registry.DefaultFlushInterval)
	orNumber(&o.OperationTime, 30*time.Second)
	orNumber(&o.PingInterval, 20*time.Second)
	orNumber(&o.ImageReserve, images.DefaultReserve)
	o.Images = o.Images.WithDefaults()
	o.Limits = o.Limits.WithDefaults()
	if !o.InstanceNetwork.IsValid() {
		o.InstanceNetwork = netip.MustParsePrefix(registry.DefaultInstanceNetwork)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Defaults returns the options that a zero Options stands for.
func Defaults() Options { return Options{}.withDefaults() }

func orString(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

func orNumber[N int | int64 | float64 | time.Duration](field *N, value N) {
	if *field == 0 {
		*field = value
	}
}

// Validate refuses settings that are not positive, or contradict each other. The
// field of an error is the name of the flag. Open fills in defaults first: zero
// is one of them there, and an error here.
func (o Options) Validate() error {
	for _, n := range o.numbers() {
		if n.value <= 0 {
			return muster.InvalidField(n.flag, "it is not positive; give one that is, or leave it out for the default")
		}
	}
	if o.CPUOvercommit < 1 {
		return muster.InvalidField("cpu-overcommit", "%g is less than 1; 1 promises exactly the CPUs that there are", o.CPUOvercommit)
	}
	if err := checkOrigins(o.AllowedOrigins); err != nil {
		return err
	}
	if err := o.checkTLS(); err != nil {
		return err
	}
	if err := o.Feed.Validate(); err != nil {
		return err
	}
	return o.registry().Validate()
}

// number is a setting that has to be positive.
type number struct {
	flag  string
	value float64
}

func (o Options) numbers() []number {
	return []number{
		{"max-connections", float64(o.MaxConnections)},
		{"publish-from", float64(o.PublishFrom)},
		{"publish-to", float64(o.PublishTo)},
		{"retain-audit", o.RetainAudit.Seconds()},
		{"heartbeat-interval", o.HeartbeatInterval.Seconds()},
		{"unhealthy-after", o.UnhealthyAfter.Seconds()},
		{"prune-after", o.PruneAfter.Seconds()},
		{"brake-max", o.BrakeMax.Seconds()},
		{"sweep-interval", o.SweepInterval.Seconds()},
		{"tombstone-ttl", o.TombstoneTTL.Seconds()},
		{"address-rest", o.AddressRest.Seconds()},
		{"queue-max", float64(o.QueueMax)},
		{"log-readers", float64(o.LogReaders)},
		{"log-readers-per-node", float64(o.LogReadersPerNode)},
		{"retain-changes", float64(o.RetainChanges)},
		{"retain-for", o.RetainFor.Seconds()},
		{"request-ttl", o.RequestTTL.Seconds()},
		{"terminated-ttl", o.TerminatedTTL.Seconds()},
		{"flush-interval", o.FlushInterval.Seconds()},
		{"operation-time", o.OperationTime.Seconds()},
		{"ping-interval", o.PingInterval.Seconds()},
		{"max-image-upload", float64(o.Images.Upload)},
		{"max-image-size", float64(o.Images.Unpacked)},
		{"max-image-entries", float64(o.Images.Entries)},
		{"max-image-ratio", float64(o.Images.Ratio)},
		{"image-reserve", float64(o.ImageReserve)},
		{"max-body", float64(o.Limits.Body)},
		{"max-agent-body", float64(o.Limits.AgentBody)},
		{"max-tokens", float64(o.Limits.Tokens)},
		{"max-depth", float64(o.Limits.Depth)},
		{"max-fields", float64(o.Limits.Fields)},
		{"max-aliases", float64(o.Limits.Aliases)},
		{"max-root-fields", float64(o.Limits.RootFields)},
		{"max-directives", float64(o.Limits.Directives)},
		{"max-complexity", float64(o.Limits.Complexity)},
		{"max-operations", float64(o.Limits.Operations)},
		{"max-websockets", float64(o.Limits.Connections)},
		{"max-websockets-each", float64(o.Limits.ConnectionsPerPrincipal)},
		{"max-streams", float64(o.Limits.Streams)},
	}
}
