package check

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
)

// Options are what a Checker needs. Checks have been validated.
type Options struct {
	Checks  []muster.Check
	Probe   Probe
	Started time.Time // of the service, that initial delays count from; default when Run is called
	// Before is what was known, such as before the agent restarted: those statuses hold until enough runs speak
	// against them. Default: all are UNKNOWN.
	Before []muster.CheckResult
	// Changed is called when the status of a check has turned, from any goroutine. Default: nobody is told.
	Changed func()
	Slots   chan struct{} // of the node: as many runs work at a time as it takes; default: no bound
}

// Checker runs the checks of one service. Its methods are safe for concurrent
// use.
type Checker struct {
	o Options

	mu     sync.Mutex
	checks []*state
}

// state is one check. Everything but what it is is guarded by the Checker's mu.
type state struct {
	check      muster.Check
	hysteresis Hysteresis
	result     muster.CheckResult
	reported   chan struct{} // TTL: there was a report
}

// New returns a Checker that does nothing yet.
func New(o Options) *Checker {
	if o.Changed == nil {
		o.Changed = func() {}
	}
	c := &Checker{o: o}
	for _, check := range o.Checks {
		check = check.WithDefaults()
		s := &state{
			check:      check,
			hysteresis: Hysteresis{FailAfter: check.FailAfter, PassAfter: check.PassAfter},
			result:     muster.CheckResult{Name: check.Name, Status: muster.CheckUnknown},
			reported:   make(chan struct{}, 1),
		}
		i := slices.IndexFunc(o.Before, func(r muster.CheckResult) bool { return r.Name == check.Name })
		if i >= 0 && o.Before[i].Status.Valid() {
			s.result, s.hysteresis.status = o.Before[i], o.Before[i].Status
		}
		c.checks = append(c.checks, s)
	}
	return c
}

// Run runs the checks until ctx ends, and returns when none works any more.
func (c *Checker) Run(ctx context.Context) error {
	started := c.o.Started
	if started.IsZero() {
		started = time.Now()
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range c.checks {
		group.Go(func() error {
			// A clock that was set back must not delay for longer than the check says.
			if !sleep(ctx, min(time.Until(started.Add(s.check.InitialDelay)), s.check.InitialDelay)) {
				return nil
			}
			if s.check.Kind == muster.TTLCheck {
				c.await(ctx, s)
			} else if c.begin(ctx, s, started) {
				c.repeat(ctx, s)
			}
			return nil
		})
	}
	return group.Wait()
}

// firstPause is between the first two runs of a check whose service may still be starting.
const firstPause = 100 * time.Millisecond

// startLook is how long a run may take at most to be taken for one of a service that does not listen yet.
const startLook = time.Second

// begin is the first run of a check. What fails at once is tried again until the service has had an interval to start:
// only the last run counts. False: ctx has ended.
func (c *Checker) begin(ctx context.Context, s *state, started time.Time) bool {
	for pause := firstPause; ; pause *= 2 {
		began := time.Now()
		o, ok := c.run(ctx, s)
		if !ok {
			return false
		}
		starting := time.Since(began) < startLook && time.Since(started) < s.check.InitialDelay+s.check.Interval-pause
		if !starting || o.Status == muster.CheckOK || o.Status == muster.CheckWarning {
			c.note(s, o)
			return true
		}
		c.mu.Lock()
		s.result.Output = o.Output
		c.mu.Unlock()
		if !sleep(ctx, pause) {
			return false
		}
	}
}

// run runs a check once. False: ctx has ended, and it says nothing of the service.
func (c *Checker) run(ctx context.Context, s *state) (Outcome, bool) {
	if !c.enter(ctx) {
		return Outcome{}, false
	}
	defer c.leave()
	o := c.o.Probe.Run(ctx, s.check)
	return o, ctx.Err() == nil
}

// repeat runs a check each interval, counted from one run's begin to the next; one that is late is not made up for.
func (c *Checker) repeat(ctx context.Context, s *state) {
	tick := time.NewTicker(s.check.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		o, ok := c.run(ctx, s)
		if !ok {
			return
		}
		c.note(s, o)
	}
}

func (c *Checker) enter(ctx context.Context) bool {
	if c.o.Slots == nil {
		return ctx.Err() == nil
	}
	select {
	case c.o.Slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Checker) leave() {
	if c.o.Slots != nil {
		<-c.o.Slots
	}
}

// await notes each interval in which nobody has reported.
func (c *Checker) await(ctx context.Context, s *state) {
	timer := time.NewTimer(s.check.Interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.reported:
		case <-timer.C:
			c.note(s, Outcome{muster.CheckCritical, fmt.Sprintf("nothing was reported for %s", s.check.Interval)})
		}
		timer.Reset(s.check.Interval)
	}
}

// note takes the result of a run.
func (c *Checker) note(s *state, o Outcome) {
	now := time.Now()
	c.mu.Lock()
	turned := s.hysteresis.Observe(o.Status)
	s.result.Output, s.result.At = o.Output, &now
	if turned {
		s.result.Status, s.result.Since = s.hysteresis.Status(), &now
	}
	c.mu.Unlock()
	if turned {
		c.o.Changed()
	}
}

// Report takes what a service says of itself, for a TTL check. NOT_FOUND: it has none of
// that name; INVALID: the status is none.
func (c *Checker) Report(name string, status muster.CheckStatus, output string) error {
	if !status.Valid() {
		return muster.InvalidField("status", "%.80q is none; use OK, WARNING, CRITICAL or UNKNOWN", status)
	}
	i := slices.IndexFunc(c.checks, func(s *state) bool { return s.check.Name == name && s.check.Kind == muster.TTLCheck })
	if i < 0 {
		return muster.Errorf(muster.NotFound, "the service has no TTL check %.80q", name)
	}
	s := c.checks[i]
	c.note(s, Outcome{status, muster.Storable(output, muster.MaxOutputBytes)})
	select {
	case s.reported <- struct{}{}:
	default: // there is one that was not seen yet
	}
	return nil
}

// Results returns what the checks have found, in their order.
func (c *Checker) Results() []muster.CheckResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]muster.CheckResult, len(c.checks))
	for i, s := range c.checks {
		all[i] = s.result
	}
	return all
}

// Ran reports whether every check has run at least once.
func (c *Checker) Ran() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(c.checks, func(s *state) bool { return s.result.At == nil })
}
