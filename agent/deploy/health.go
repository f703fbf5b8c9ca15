package deploy

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/check"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/proc"
)

func itoa(n int) string { return strconv.Itoa(n) }

// checking are the checks of one run of a service's process.
type checking struct {
	checker    *check.Checker
	generation int64
	machine    string
	told       []muster.CheckStatus // what they had found when the service was spoken of last
	cancel     context.CancelFunc
	done       chan struct{}
}

// expose publishes the service's port and has its checks run.
func (u *unit) expose(ctx context.Context, w wanted, started time.Time) {
	u.publish(w)
	u.mu.Lock()
	running := u.checking
	u.mu.Unlock()
	if len(w.service.Checks) == 0 || running != nil && running.generation == w.service.Generation && running.machine == w.machine {
		return
	}
	u.stopChecks()
	checks, cancel := context.WithCancel(ctx)
	c := &checking{
		checker:    check.New(check.Options{Checks: w.service.Checks, Probe: u.probe(w), Started: started, Changed: u.nudge, Slots: u.m.slots}),
		generation: w.service.Generation, machine: w.machine, cancel: cancel, done: make(chan struct{}),
	}
	go func() {
		defer close(c.done)
		_ = c.checker.Run(checks) // it returns no error
	}()
	u.mu.Lock()
	u.checking = c
	u.mu.Unlock()
}

// publish has the service's port lead to it.
func (u *unit) publish(w wanted) {
	if p := w.service.Publish; p != nil && p.Port != 0 && w.addr != "" {
		u.m.publisher.set(u.id, &Port{Published: *p, Owner: u.id, Addr: w.addr, To: w.service.Port})
	}
}

// withdraw takes the service's port back and ends its checks.
func (u *unit) withdraw() {
	u.m.publisher.set(u.id, nil)
	u.stopChecks()
}

func (u *unit) stopChecks() {
	u.mu.Lock()
	c := u.checking
	u.checking = nil
	u.mu.Unlock()
	if c != nil {
		c.cancel()
		<-c.done
	}
}

// probe is how to look at a service in its machine.
func (u *unit) probe(w wanted) check.Probe {
	p := check.Probe{Port: w.service.Port}
	p.Addr, _ = netip.ParseAddr(w.addr) // none: loopback, from inside
	if dialer, ok := u.m.o.Driver.(driver.Dialer); ok {
		p.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialer.DialMachine(ctx, w.machine, network, address)
		}
	}
	if runner, ok := u.m.o.Driver.(driver.Exec); ok {
		p.Exec = func(ctx context.Context, command []string, output io.Writer) (driver.Exit, error) {
			spec := driver.ExecSpec{Machine: w.machine, Command: command, User: w.service.User}
			spec.Dir, spec.Env = w.given()
			if spec.User == "" {
				spec.User = Nobody
			}
			return runner.Exec(ctx, spec, driver.Streams{Stdout: output, Stderr: output})
		}
	}
	return p
}

// tellRunning says how a service is whose process runs. Of one that an earlier agent
// started nothing is said before its checks have run, for some time.
func (u *unit) tellRunning(w wanted, p proc.Status) time.Duration {
	r := muster.ServiceReportInput{Status: muster.ServiceRunning, Restarts: p.Restarts, ExitCode: p.ExitCode}
	if p.PID != 0 {
		r.PID = &p.PID
	}
	if u.lastPID != 0 && p.PID != u.lastPID && p.Restarts > 0 {
		u.mending = true
	}
	u.lastPID = p.PID
	u.mu.Lock()
	c, known := u.checking, u.known
	u.mu.Unlock()
	if u.adopted && !known && c != nil && undecided(c.checker.Results()) && time.Since(u.since) < patience(w.service.Checks) {
		return time.Second / 4
	}
	reason, tried := u.m.publisher.outcome(u.id)
	if !tried {
		return time.Second // or when it is
	}
	r.Health, r.HealthReason = u.judge(c)
	if reason != "" {
		r.Health, r.HealthReason = muster.HealthBad, "its port is not published: "+reason
	}
	u.tell(w, r)
	return 0
}

// quiet is how long at least, if need be, nothing is said of a service that an earlier
// agent started.
const quiet = 30 * time.Second

// patience is until when the checks of a service that ran before should have found what
// they find: it takes some of them several runs.
func patience(checks []muster.Check) time.Duration {
	longest := quiet
	for _, c := range checks {
		longest = max(longest, time.Duration(max(c.FailAfter, c.PassAfter)+1)*c.Interval)
	}
	return longest
}

// undecided reports whether some checks may yet find that all is well.
func undecided(results []muster.CheckResult) bool {
	found := statuses(results)
	return slices.Contains(found, muster.CheckUnknown) && !slices.Contains(found, muster.CheckCritical)
}

func statuses(results []muster.CheckResult) []muster.CheckStatus {
	found := make([]muster.CheckStatus, len(results))
	for i, r := range results {
		found[i] = r.Status
	}
	return found
}

// judge is the health that the checks make. One that was started again is not well before
// all of them have passed.
func (u *unit) judge(c *checking) (muster.ServiceHealth, string) {
	health, reason := muster.HealthOK, ""
	if c != nil {
		health, reason = worst(c.checker.Results())
	}
	switch {
	case health == muster.HealthOK:
		u.mending = false
	case u.mending && health == muster.HealthUnknown:
		return muster.HealthBad, "it was started again: " + reason
	}
	return health, reason
}

// worst is the health that results make together.
func worst(results []muster.CheckResult) (muster.ServiceHealth, string) {
	rank := map[muster.CheckStatus]int{muster.CheckOK: 0, muster.CheckWarning: 1, muster.CheckUnknown: 2, muster.CheckCritical: 3}
	healths := []muster.ServiceHealth{muster.HealthOK, muster.HealthWarning, muster.HealthUnknown, muster.HealthBad}
	worst, reason := 0, ""
	for _, r := range results {
		if n := rank[r.Status]; n > worst {
			worst, reason = n, "its check "+r.Name+" is "+string(r.Status)
		}
	}
	return healths[worst], reason
}

func (u *unit) reportCheck(r muster.CheckRequest) error {
	u.mu.Lock()
	c := u.checking
	u.mu.Unlock()
	if c == nil {
		return muster.Errorf(muster.Conflict, "the service %s does not run: its checks begin when it does", r.Service)
	}
	return c.checker.Report(r.Check, r.Status, r.Output)
}
