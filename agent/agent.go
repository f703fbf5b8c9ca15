package agent

import (
	"cmp"
	"context"
	secret "crypto/rand"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/failpoint"
)

// DefaultListen is where an agent takes nudges by default.
const DefaultListen = "127.0.0.1:8080"

// Options are the settings of an Agent. Driver, Registry and StateDir have to be
// there; all else works as it is.
type Options struct {
	Driver      driver.Driver // runs the machines
	Registry    Registry      // such as a *client.Client
	StateDir    string        // of this agent alone; made if need be
	Router      Router        // connects the instances of the nodes; nil: nobody does
	Credentials *Credentials  // of the node; nil: it has not joined, and takes nudges from everybody
	Images      Images        // gets images of the registry's; nil: only the node's own can be launched

	Deploy deploy.Options // Fetch and Ports of services; the rest is the agent's own

	ID            muster.NodeID   // default the hostname
	Listen        string          // address and port for nudges; default DefaultListen
	Listener      net.Listener    // instead of listening on Listen; Run closes it; default none
	Advertise     string          // the IP that the node is reached at; default that of Listen
	AdvertisePort int             // the port that the node is reached at; default that of Listen
	CPUs          int             // offered to instances; default the host's
	MemoryMB      int             // offered to instances, MiB; default the host's less a tenth, at least 256
	Role          muster.NodeRole // default COMPUTE
	Labels        muster.Map      // default none
	Version       string          // of the agent; default empty
	BootID        string          // of the host's present boot; default from /proc
	Grace         time.Duration   // that a payload has to stop in before force; default 10 s
	Parallel      int             // launches, stops and removals at once; default 4
	Interval      time.Duration   // between beats until the registry says; default 10 s
	Ready         func(net.Addr)  // called once nudges are taken, with the address; default none
	Reached       failpoint.Hook  // told each step of what is done with a machine, for tests; default none
	Random        func() float64  // from 0 to 1, what beats and pauses vary by; safe for concurrent use; default math/rand/v2's
	Logger        *slog.Logger    // default none

	hostname string
}

// Agent is the process on a node. See the package's documentation.
type Agent struct {
	o Options

	fetchDue, passDue, reportDue, registerDue, attendDue, routeDue signal

	services *deploy.Manager
	sessions sync.WaitGroup // of commands

	mu    sync.Mutex
	state state
}

// state is what the agent's loops share. Everything in it is guarded by mu.
type state struct {
	file       *identityFile // nil before Run
	addr       string        // that the node registers with
	port       int
	registered bool // the registry knows this incarnation, as far as the agent knows
	interval   time.Duration
	desired    *muster.Assignments          // as fetched last; nil before
	fetched    time.Time                    // when that was
	told       *muster.Assignments          // whose services the manager of services knows; nil before
	busy       map[string]step              // what is being done, by disk
	failed     map[string]string            // why a launch could not be tried, by machine
	pulls      map[string]pull              // images being got, by the machine that waits
	remove     map[string]bool              // machines that the registry named as terminated
	revive     map[string]bool              // machines to start again; see identity.Revive
	preparing  bool                         // an earlier agent's launch goes on
	looking    bool                         // and somebody looks again soon
	removing   bool                         // volumes are being removed
	disks      map[string]diskFigure        // of machines that run
	accepted   *muster.ReportInstancesInput // what the registry was told last; nil: not known
	sequence   int64
	taken      int64              // the sequence of what was accepted; 0: of a registration
	usage      *muster.UsageInput // as measured last; nil: nothing was
	peers      *muster.Peers      // as fetched last; nil before
	peersTag   string             // that the newest beat was answered with
}

// New returns an agent that does nothing yet. INVALID: something that has to be
// there is missing.
func New(o Options) (*Agent, error) {
	switch {
	case o.Driver == nil:
		return nil, muster.InvalidField("driver", "an agent needs one to run machines")
	case o.Registry == nil:
		return nil, muster.InvalidField("registry", "an agent needs one to register with")
	case o.StateDir == "":
		return nil, muster.InvalidField("stateDir", "an agent needs a directory to remember itself in: give one with --state-dir")
	}
	if o.Listen == "" {
		o.Listen = DefaultListen
	}
	if o.Role == "" {
		o.Role = muster.Compute
	}
	if o.Grace <= 0 {
		o.Grace = 10 * time.Second
	}
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	if o.Interval <= 0 {
		o.Interval = 10 * time.Second
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := o.fill(); err != nil {
		return nil, err
	}
	a := &Agent{
		o:        o,
		fetchDue: newSignal(), passDue: newSignal(), reportDue: newSignal(), registerDue: newSignal(), attendDue: newSignal(), routeDue: newSignal(),
		state: state{
			interval: o.Interval,
			busy:     map[string]step{}, failed: map[string]string{},
			pulls:  map[string]pull{},
			remove: map[string]bool{}, revive: map[string]bool{},
		},
	}
	a.services = deploy.New(a.deployment())
	return a, nil
}

// Run is the agent at work, once. It returns nil when ctx ends, and an error
// when the agent cannot start or must not go on: SUPERSEDED, DUPLICATE_IDENTITY,
// or FORBIDDEN from the registry, and at its first registration whatever its
// settings cause. The machines run on in any case.
func (a *Agent) Run(ctx context.Context) error {
	file, err := openIdentity(ctx, a.o.StateDir)
	if err != nil {
		return err
	}
	defer file.close()
	if err := a.begin(ctx, file); err != nil {
		return err
	}
	listener := a.o.Listener
	if listener == nil {
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", a.o.Listen); err != nil {
			return fmt.Errorf("listen for nudges: %w; stop what uses the port, or give another with --listen", err)
		}
	}
	defer func() { _ = listener.Close() }()
	addr, port, err := a.o.reachedAt(listener.Addr())
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.state.addr, a.state.port = addr, port
	a.mu.Unlock()
	if a.o.Ready != nil {
		a.o.Ready(listener.Addr())
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.serve(ctx, listener) })
	group.Go(func() error { return a.beat(ctx) })
	group.Go(func() error { return a.fetch(ctx) })
	group.Go(func() error { return a.report(ctx) })
	group.Go(func() error { return a.watch(ctx) })
	group.Go(func() error { return a.attend(ctx) })
	group.Go(func() error { return a.measure(ctx) })
	group.Go(func() error { return a.measureDisks(ctx) })
	group.Go(func() error { return a.renew(ctx) })
	group.Go(func() error { return a.route(ctx) })
	group.Go(func() error { return a.reconcile(ctx) })
	group.Go(func() error { return a.services.Run(ctx) })
	err = group.Wait()
	a.sessions.Wait()
	return err
}

// begin starts a new incarnation and notes what the host's restart cut off.
func (a *Agent) begin(ctx context.Context, file *identityFile) error {
	machines, err := a.o.Driver.List(ctx)
	if err != nil {
		return fmt.Errorf("list the machines that are here: %w", err)
	}
	err = file.update(func(is *identity) {
		restarted := is.BootID != "" && is.BootID != a.o.BootID
		is.Incarnation++
		is.Birth = cmp.Or(is.Birth, secret.Text())
		is.BootID = a.o.BootID
		is.Revive = toRevive(machines, is.Revive, restarted)
	})
	if err != nil {
		return err
	}
	is := file.read()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.file = file
	for _, machine := range is.Revive {
		a.state.revive[machine] = true
	}
	a.o.Logger.Info("the agent begins", "node", a.o.ID, "incarnation", is.Incarnation, "machines", len(machines), "revive", len(is.Revive))
	return nil
}

// toRevive selects the machines that the host's restart ended, the last one or
// an earlier one that they have not been started again after. What had ended
// before it stays as it ended.
func toRevive(machines []driver.Status, before []string, restarted bool) []string {
	var revive []string
	for _, m := range machines {
		cut := restarted && m.Reason == reasonRestarted || slices.Contains(before, m.Spec.Machine)
		if m.State == driver.Exited && cut {
			revive = append(revive, m.Spec.Machine)
		}
	}
	return revive
}

// identity is what the agent knows of itself; ok is false before Run.
func (a *Agent) identity() (is identity, ok bool) {
	a.mu.Lock()
	file := a.state.file
	a.mu.Unlock()
	if file == nil {
		return identity{}, false
	}
	return file.read(), true
}

// watch looks at the machines whenever the driver says that one may have changed.
func (a *Agent) watch(ctx context.Context) error {
	for range a.o.Driver.Watch(ctx) {
		a.passDue.raise()
		a.reportDue.raise()
	}
	return nil
}
