package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-memdb"
	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/liveness"
	"github.com/muster-cloud/muster/registry/scheduler"
	"github.com/muster-cloud/muster/registry/watch"
)

// Store is the durable state. A Commit that fails with code UNAVAILABLE surely
// did not happen; one that wraps muster.ErrOutcomeUnknown may have; any other
// error means that the batch itself was refused.
type Store interface {
	Load(ctx context.Context) (*muster.State, error)
	Commit(ctx context.Context, b *muster.Batch) error
	SaveLastUsed(ctx context.Context, used map[muster.KeyID]time.Time) error
	ForgetAudit(ctx context.Context, before time.Time) error
	SaveLastSeen(ctx context.Context, seen map[muster.NodeUID]time.Time) error
	ForgetRequests(ctx context.Context, before time.Time) error
	Compact(ctx context.Context, keep muster.Retention) (floor muster.Position, deleted int64, err error)
}

// History reads the change log and the audit.
type History interface {
	ChangesAfter(ctx context.Context, after int64, limit int) ([]*muster.Change, error)
	ChangesOfAfter(ctx context.Context, objectID string, after int64, limit int) ([]*muster.Change, error)
	LastChanges(ctx context.Context, objectIDs []string, n int) (map[string][]*muster.Change, error)
	AuditBefore(ctx context.Context, f *muster.AuditFilter, before int64, limit int) ([]*muster.AuditEntry, error)
}

// Agents reaches the agents of nodes. Calls may fail; beats heal what got lost.
type Agents interface {
	// Nudge tells the agent that its node's desired revision has moved.
	Nudge(ctx context.Context, n Nudge) error
	// Identify asks who answers at the address of a node's agent.
	Identify(ctx context.Context, n *muster.Node) (muster.NodeUID, int64, error)
}

// Nudge names what an agent should look at.
type Nudge struct {
	UID             muster.NodeUID // of the node
	Secure          bool           // as the node's
	Addr            string
	Port            int
	Instance        muster.InstanceID
	DesiredRevision int64
	Incarnation     int64
}

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

// Deps is what a Registry stands on.
type Deps struct {
	Store        Store
	History      History
	Hub          *watch.Hub
	Agents       Agents
	Logger       *slog.Logger // nil: slog.Default
	Certificates Certificates // nil: there is no TLS
	Feed         Feed         // nil: entries of the discovery feed are kept, and published nowhere
	// KeysChanged is told when a key or token may open less than before; nil: nobody is.
	// It must not block.
	KeysChanged func()
}

// Registry answers and changes the state of the cloud. Its methods are safe for
// concurrent use.
type Registry struct {
	Deps
	opts    Options
	commits *committer
	beats   beats
	desk    desk
	readers readers
	used    uses
	refused refusals
	outputs outputs
	feed    feedState
	signIns signIns
	sweeps  chan struct{} // wakes the sweeper
	gate    chan struct{} // wakes who keeps the gate
	nudges  chan Nudge

	pulse   *liveness.Pulse
	ignored atomic.Int64 // parts of reports that could not be

	mu        sync.Mutex
	listening time.Time // with its monotonic part; zero before Listening
	believed  time.Time // silence counts from here at the earliest: the start, or the last time that no beat could be heard
	braking   time.Time // since when this server has seen the brake hold; zero when it does not
}

// Open loads the state. Nothing runs before Run.
func Open(ctx context.Context, deps Deps, opts Options) (*Registry, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.Default()
	}
	r := &Registry{Deps: deps, opts: opts.withDefaults(), sweeps: make(chan struct{}, 1), gate: make(chan struct{}, 1), nudges: make(chan Nudge, 1024)}
	r.pulse = liveness.NewPulse(r.opts.Liveness.Interval, r.opts.Now)
	r.commits = &committer{
		store: deps.Store, log: deps.Logger, now: func() time.Time { return stamp(r.opts.Now()) }, seen: r.beats.seen,
		limit: r.opts.MaxBatch, ports: r.ports(), queue: make(chan call, r.opts.MaxQueue), stopped: make(chan struct{}),
		settle: r.settle, hear: r.hear, announce: r.announce, recover: r.recover,
	}
	if err := r.reload(ctx); err != nil {
		return nil, fmt.Errorf("load the state: %w", err)
	}
	r.commits.ready.Store(true)
	return r, nil
}

// stamp makes a time fit to be stored: UTC, whole microseconds, no monotonic part.
func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// install makes the loaded state the present one.
func (r *Registry) install(s *muster.State, at time.Time) error {
	db, err := memdb.NewMemDB(schema())
	if err != nil {
		return fmt.Errorf("make the state in memory: %w", err)
	}
	m := &meta{clusterUID: s.ClusterUID, epoch: s.Epoch, term: s.Term, head: s.Head, at: at, sequences: s.Sequences}
	if m.sequences == nil {
		m.sequences = map[string]int64{}
	}
	b := &batch{txn: db.Txn(true), meta: m}
	b.view = View{txn: b.txn}
	uses := map[muster.NodeUID]*use{}
	for _, n := range s.Nodes {
		b.insert(tableNode, n)
		m.peers += peerSum(n)
		uses[n.UID] = &use{uid: n.UID, desiredRevision: n.DesiredRevision}
	}
	for _, i := range s.Instances {
		b.insert(tableInstance, i)
		if u := uses[i.NodeUID]; u != nil {
			u.add(i)
		}
	}
	for _, u := range uses {
		b.insert(tableUse, u)
	}
	for _, c := range s.Conditions {
		b.insert(tableCondition, c)
	}
	for _, i := range s.Images {
		b.insert(tableImage, i)
	}
	for _, o := range s.Services {
		b.insert(tableService, o)
		if u := uses[nodeOfInstance(b.view.rawInstance(o.InstanceID))]; u != nil && u.desiredRevision < o.DesiredRevision {
			u.desiredRevision = o.DesiredRevision
			b.insert(tableUse, u)
		}
	}
	for _, e := range s.Entries {
		b.insert(tableEntry, e)
	}
	for _, k := range s.Keys {
		b.insert(tableKey, k)
	}
	for _, t := range s.Tokens {
		b.insert(tableToken, t)
	}
	for _, request := range s.Requests {
		b.insert(tableRequest, request)
	}
	b.insert(tableMeta, m)
	b.txn.Commit()
	r.commits.db.Store(db)
	return nil
}

// reload replaces memory by what the database has. The watchers take what they
// have missed from the log.
func (r *Registry) reload(ctx context.Context) error {
	state, err := r.Store.Load(ctx)
	if err != nil {
		return err
	}
	at, err := r.newestAt(ctx, state)
	if err != nil {
		return err
	}
	if err := r.install(state, at); err != nil {
		return err
	}
	r.Hub.Reset(state.Epoch, state.Head, state.Floor)
	return nil
}

// newestAt returns when the newest change was committed, so that time does not
// go back over a restart; zero when the log no longer has it.
func (r *Registry) newestAt(ctx context.Context, s *muster.State) (time.Time, error) {
	if s.Head == s.Floor {
		return time.Time{}, nil
	}
	newest, err := r.History.ChangesAfter(ctx, s.Head.Revision-1, 1)
	if err != nil || len(newest) == 0 {
		return time.Time{}, err
	}
	return newest[0].At, nil
}

// View returns a snapshot of the present state.
func (r *Registry) View() View { return View{txn: r.commits.db.Load().Txn(false)} }

// Ready reports whether mutations are taken, and why not.
func (r *Registry) Ready() error {
	if !r.commits.ready.Load() {
		return errors.New("the state is being loaded from the database again")
	}
	select {
	case <-r.commits.stopped:
		return errors.New("the registry has stopped")
	default:
		return nil
	}
}

// Listening says that agents can reach the server from now on: silence and the
// start-up grace count from here.
func (r *Registry) Listening() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listening.IsZero() {
		r.listening = time.Now()
		r.believed = r.listening
	}
}

// Run commits, sweeps and keeps house until ctx ends; then it finishes the
// commit that it is in and flushes when the nodes were last seen.
func (r *Registry) Run(ctx context.Context) error {
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.commits.run(gctx) })
	group.Go(func() error { return r.sweep(gctx) })
	group.Go(func() error { return r.listen(gctx) })
	group.Go(func() error { return r.keepHouse(gctx) })
	group.Go(func() error { return r.writeRefusals(gctx) })
	group.Go(func() error { return r.keepGate(gctx) })
	for range nudgers {
		group.Go(func() error { return r.nudge(gctx) })
	}
	err := group.Wait()
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	r.flushLastRefusals(flush)
	return errors.Join(err, r.flushLastSeen(flush), r.flushLastUsed(flush))
}

// mutate runs a mutation as the context's principal and returns its revision.
func (r *Registry) mutate(ctx context.Context, m Mutation) (int64, error) {
	p := muster.PrincipalOf(ctx)
	return r.commits.submit(ctx, p.Actor(), r.admitting(p, r.audited(p, m)))
}

// admitting runs m unless the caller's key has ended meanwhile: nothing that a key did
// comes after its revocation.
func (r *Registry) admitting(p muster.Principal, m Mutation) Mutation {
	return func(v View, w *Writes) error {
		if !r.admitted(v, p) {
			return muster.Errorf(muster.Unauthenticated, "%s was revoked or has expired while this was under way: nothing happened", p.Name)
		}
		return m(v, w)
	}
}

// observed runs a mutation that tells what a node's agent observed.
func (r *Registry) observed(ctx context.Context, node muster.NodeID, m Mutation) (int64, error) {
	p := muster.PrincipalOf(ctx)
	return r.commits.submit(ctx, muster.Actor{Name: "node " + string(node), Key: p.Key, Addr: p.Addr}, r.admitting(p, m))
}

// itself is the registry as an actor.
var itself = muster.Actor{Name: "muster"}

// system runs a mutation of the registry's own.
func (r *Registry) system(ctx context.Context, m Mutation) error {
	_, err := r.commits.submit(ctx, itself, m)
	return err
}

// settle gives freed capacity to those that wait, in the same commit.
func (r *Registry) settle(b *batch) {
	if b.frees {
		b.frees = false
		r.placePending(b)
	}
}

// hear stamps who was heard of by a batch before the batch can be seen: a sweep
// must not find a node that registered without the sign of life that this is.
func (r *Registry) hear(b *batch) {
	for _, uid := range b.heard {
		r.heard(uid)
	}
}

func (r *Registry) keysChanged() {
	if r.KeysChanged != nil {
		r.KeysChanged()
	}
}

// recover loads the state again, in which keys may have ended that memory had as good.
func (r *Registry) recover(ctx context.Context) error {
	if err := r.reload(ctx); err != nil {
		return err
	}
	r.keysChanged()
	return nil
}

// announce tells of a batch that has become visible.
func (r *Registry) announce(b *batch) {
	if len(b.changes) > 0 {
		r.Hub.Publish(b.changes)
	}
	if len(b.keys.kept)+len(b.keys.dropped)+len(b.tokens.dropped) > 0 {
		r.keysChanged()
	}
	for uid := range b.nodes.dropped {
		r.beats.forget(uid)
	}
	for id := range b.keys.dropped {
		r.used.forget(id)
	}
	v := r.View()
	for uid, n := range b.nudges {
		node := v.NodeByUID(uid)
		if node == nil || !node.Live() {
			continue
		}
		n.UID, n.Secure = uid, node.Secure
		n.Addr, n.Port, n.Incarnation = node.Addr, node.Port, node.Incarnation
		select {
		case r.nudges <- n:
		default: // the next beat tells the agent
		}
	}
}

// nudgers is how many agents are told at the same time.
const nudgers = 4

func (r *Registry) nudge(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case n := <-r.nudges:
			if err := r.Agents.Nudge(ctx, n); err != nil {
				r.Logger.Debug("a nudge got lost; the next beat tells the agent", "instance", n.Instance, "err", err)
			}
		}
	}
}
