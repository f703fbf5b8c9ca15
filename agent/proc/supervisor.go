package proc

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// State is what a Supervisor knows of a process.
type State string

// The states of a process.
const (
	Starting State = "STARTING" // it is being started, or its instance does not run
	Running  State = "RUNNING"
	Waiting  State = "WAITING" // it ended, and is started again after a pause
	Stopping State = "STOPPING"
	Stopped  State = "STOPPED" // as wanted, or it has done what it should
	Failed   State = "FAILED"  // and is not started again before its generation is raised
)

// Spec is a process that should run.
type Spec struct {
	driver.ProcessSpec // Note is the Supervisor's own

	Generation int64                // one that is higher than the process's has it started again
	Artifact   string               // the checksum of what it is made of; remembered beside it
	Restart    muster.RestartPolicy // what follows when it ends by itself
	Stop       driver.Stop          // how it is stopped; Grace 0: 10 s
}

// Status is a process as it is.
type Status struct {
	Ref        driver.ProcessRef
	State      State
	Generation int64
	PID        int    // while it runs
	ExitCode   *int   // of its last end; nil: unknown, or none
	Reason     string // why it is not running
	Restarts   int    // by policy, since somebody had it started
	Started    time.Time
	Ended      time.Time
	Next       time.Time // when it is started again, while Waiting
}

// Options are what a Supervisor needs. Driver has to be there.
type Options struct {
	Driver driver.Processes
	// Changed is called after the status of a process has changed, from any goroutine. It must not wait for the
	// Supervisor. Default: nobody is told.
	Changed func(driver.ProcessRef)
	Retry   time.Duration // until what could not be tried is tried again; default 5 s
	Logger  *slog.Logger  // default: none
}

// Supervisor keeps processes as they are wanted. Its methods are safe for
// concurrent use.
type Supervisor struct {
	o Options

	mu      sync.Mutex
	keepers map[driver.ProcessRef]*keeper
	pending []*keeper     // that Run has not begun with
	wake    chan struct{} // there are some
}

// New returns a Supervisor that keeps nothing yet.
func New(o Options) *Supervisor {
	if o.Changed == nil {
		o.Changed = func(driver.ProcessRef) {}
	}
	if o.Retry <= 0 {
		o.Retry = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Supervisor{o: o, keepers: map[driver.ProcessRef]*keeper{}, wake: make(chan struct{}, 1)}
}

// Run works until ctx ends. The processes go on.
func (s *Supervisor) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for ref := range s.o.Driver.WatchProcesses(ctx) {
			s.Look(ref)
		}
		return nil
	})
	group.Go(func() error {
		for {
			for _, k := range s.takePending() {
				group.Go(func() error {
					k.run(ctx)
					return nil
				})
			}
			select {
			case <-ctx.Done():
				return nil
			case <-s.wake:
			}
		}
	})
	return group.Wait()
}

func (s *Supervisor) takePending() []*keeper {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.pending
	s.pending = nil
	return taken
}

// Keep has a process run from now on, or says how from now on. Of a process that runs
// already, as the same generation, nothing changes.
func (s *Supervisor) Keep(spec Spec) {
	if spec.Stop.Grace <= 0 {
		spec.Stop.Grace = 10 * time.Second
	}
	s.want(spec.ProcessRef, want{kind: wantRunning, spec: spec, stop: spec.Stop})
}

// Halt has a process stopped from now on. Its status and log stay.
func (s *Supervisor) Halt(ref driver.ProcessRef, stop driver.Stop) {
	s.want(ref, want{kind: wantStopped, stop: stop})
}

// Drop has a process ended and everything of it deleted; then the Supervisor
// forgets it.
func (s *Supervisor) Drop(ref driver.ProcessRef) { s.want(ref, want{kind: wantGone}) }

// Forget keeps a process no longer, and leaves it as it is.
func (s *Supervisor) Forget(ref driver.ProcessRef) { s.want(ref, want{kind: wantNothing}) }

// Look has a process looked at again at once, such as when its instance has changed.
func (s *Supervisor) Look(ref driver.ProcessRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.keepers[ref]; ok {
		k.nudge()
	}
}

// List returns what is known of the processes that are kept, sorted.
func (s *Supervisor) List() []Status {
	s.mu.Lock()
	keepers := slices.Collect(maps.Values(s.keepers))
	s.mu.Unlock()
	all := make([]Status, 0, len(keepers))
	for _, k := range keepers {
		all = append(all, k.current())
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Ref.String(), b.Ref.String()) })
	return all
}

// Status returns what is known of one, and whether it is kept.
func (s *Supervisor) Status(ref driver.ProcessRef) (Status, bool) {
	s.mu.Lock()
	k, ok := s.keepers[ref]
	s.mu.Unlock()
	if !ok {
		return Status{}, false
	}
	return k.current(), true
}

func (s *Supervisor) want(ref driver.ProcessRef, w want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.keepers[ref]
	if !ok {
		if w.kind == wantNothing {
			return
		}
		k = &keeper{s: s, ref: ref, woken: make(chan struct{}, 1), status: Status{Ref: ref, State: Starting}}
		s.keepers[ref] = k
		s.pending = append(s.pending, k)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	k.set(w)
}

// forget is called by a keeper that is done, unless something else is wanted of it by now.
func (s *Supervisor) forget(k *keeper) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.want.kind == wantRunning || k.want.kind == wantStopped {
		return false
	}
	delete(s.keepers, k.ref)
	return true
}
