package registry

import (
	"context"
	"net/netip"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/liveness"
	"github.com/muster-cloud/muster/registry/scheduler"
)

// The defaults of Options.
const (
	DefaultSweepInterval   = time.Second
	DefaultMaxBatch        = 256
	DefaultMaxQueue        = 4096
	DefaultMaxPending      = 1000
	DefaultRequestTTL      = 24 * time.Hour
	DefaultTerminatedTTL   = time.Hour
	DefaultAddressRest     = 2 * time.Minute
	DefaultKeepChanges     = 100_000
	DefaultKeepChangesFor  = 72 * time.Hour
	DefaultFlushInterval   = time.Minute
	DefaultTombstone       = 72 * time.Hour
	DefaultPublishFrom     = muster.DefaultPortFrom
	DefaultPublishTo       = muster.DefaultPortTo
	DefaultKeepAudit       = 90 * 24 * time.Hour
	DefaultLogReaders      = 256
	DefaultLogReadersNode  = 16
	DefaultInstanceNetwork = "10.213.0.0/16"
)

// Options sets the rules and limits. The zero value works.
type Options struct {
	Version         string
	Liveness        liveness.Options
	Scheduler       scheduler.Options
	InstanceNetwork netip.Prefix  // each node gets a /24 of it; zero: DefaultInstanceNetwork
	SweepInterval   time.Duration // how often silence is looked at; 0: DefaultSweepInterval
	MaxBatch        int           // mutations a database transaction; 0: DefaultMaxBatch
	MaxQueue        int           // mutations that may wait; 0: DefaultMaxQueue
	MaxPending      int           // instances that may wait for a node; 0: DefaultMaxPending
	RequestTTL      time.Duration // how long a requestId is remembered; 0: DefaultRequestTTL
	TerminatedTTL   time.Duration // how long a terminated instance can be asked for; 0: DefaultTerminatedTTL
	AddressRest     time.Duration // how long an address stays unused; 0: DefaultAddressRest
	KeepChanges     int           // changes that are kept; 0: DefaultKeepChanges
	KeepChangesFor  time.Duration // how long they are kept; 0: DefaultKeepChangesFor
	FlushInterval   time.Duration // how often lastSeen is flushed and the log compacted; 0: DefaultFlushInterval
	Tombstone       time.Duration // how long a pruned node can return as itself; 0: DefaultTombstone
	PublishFrom     int           // the lowest port of nodes that services get which ask for none; 0: DefaultPublishFrom
	PublishTo       int           // the highest one; 0: DefaultPublishTo
	KeepAudit       time.Duration // how long the audit, and keys and tokens that have ended, are kept; 0: DefaultKeepAudit
	LogReaders      int           // logs that are read at a time; 0: DefaultLogReaders
	Now             func() time.Time
	// LogReadersPerNode is how many logs of one node are read at a time; 0: DefaultLogReadersNode.
	LogReadersPerNode int
	// Probe asks the server's own port, as an agent would: while it fails, no
	// node's silence is believed. Nil: it is not asked.
	Probe func(context.Context) error
	// Insecure is the address at which other machines reach the server without TLS, which is
	// a condition; empty: at none.
	Insecure string
}

func (o Options) withDefaults() Options {
	o.Liveness = o.Liveness.WithDefaults()
	if !o.InstanceNetwork.IsValid() {
		o.InstanceNetwork = netip.MustParsePrefix(DefaultInstanceNetwork)
	}
	orDefault(&o.SweepInterval, DefaultSweepInterval)
	orDefault(&o.MaxBatch, DefaultMaxBatch)
	orDefault(&o.MaxQueue, DefaultMaxQueue)
	orDefault(&o.MaxPending, DefaultMaxPending)
	orDefault(&o.RequestTTL, DefaultRequestTTL)
	orDefault(&o.TerminatedTTL, DefaultTerminatedTTL)
	orDefault(&o.AddressRest, DefaultAddressRest)
	orDefault(&o.KeepChanges, DefaultKeepChanges)
	orDefault(&o.KeepChangesFor, DefaultKeepChangesFor)
	orDefault(&o.FlushInterval, DefaultFlushInterval)
	orDefault(&o.Tombstone, DefaultTombstone)
	orDefault(&o.PublishFrom, DefaultPublishFrom)
	orDefault(&o.PublishTo, DefaultPublishTo)
	orDefault(&o.KeepAudit, DefaultKeepAudit)
	orDefault(&o.LogReaders, DefaultLogReaders)
	orDefault(&o.LogReadersPerNode, DefaultLogReadersNode)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func orDefault[T int | time.Duration](v *T, fallback T) {
	if *v <= 0 {
		*v = fallback
	}
}

// Validate refuses rules that contradict each other.
func (o Options) Validate() error {
	o = o.withDefaults()
	if err := o.Liveness.Validate(); err != nil {
		return err
	}
	if n := o.InstanceNetwork; !n.Addr().Is4() || n.Bits() > 24 || n != n.Masked() {
		return muster.InvalidField("instance-network", "%s is not an IPv4 network of at least a /24 with its host bits zero; give one such as %s", n, DefaultInstanceNetwork)
	}
	if o.PublishFrom > o.PublishTo || o.PublishTo > 65535 {
		return muster.InvalidField("publish-to", "%d to %d are no ports; give two numbers up to 65535, the lower one as publish-from", o.PublishFrom, o.PublishTo)
	}
	return nil
}
