package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-memdb"
	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/liveness"
)

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
