package check_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/check"
	"github.com/muster-cloud/muster/agent/driver"
)

// patient is a service whose checks exit with a code that a test sets, and print something else each time.
type patient struct {
	code, runs, changes atomic.Int64
}

func (p *patient) exec(ctx context.Context, command []string, out io.Writer) (driver.Exit, error) {
	fmt.Fprintf(out, "run %d", p.runs.Add(1))
	if command[0] == "hangs" {
		<-ctx.Done()
		return driver.Exit{}, ctx.Err()
	}
	return driver.Exit{Code: int(p.code.Load())}, nil
}

// watch runs a Checker for as long as fn takes, in a bubble of time.
func watch(t *testing.T, o check.Options, fn func(t *testing.T, p *patient, c *check.Checker)) {
	synctest.Test(t, func(t *testing.T) {
		p := &patient{}
		o.Probe.Exec = p.exec
		o.Changed = func() { p.changes.Add(1) }
		if o.Slots != nil { // one of the bubble
			o.Slots = make(chan struct{}, cap(o.Slots))
		}
		c := check.New(o)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		fn(t, p, c)
		cancel()
		group.Wait()
	})
}

func execCheck(name string) muster.Check {
	return muster.Check{Name: name, Kind: muster.ExecCheck, Command: []string{"x"}}
}

func expect(t *testing.T, p *patient, c *check.Checker, status muster.CheckStatus, runs, changes int64) {
	t.Helper()
	synctest.Wait()
	r := c.Results()[0]
	if r.Status != status || p.runs.Load() != runs || p.changes.Load() != changes {
		t.Errorf("%+v after %d runs and %d changes, want %s after %d and %d", r, p.runs.Load(), p.changes.Load(), status, runs, changes)
	}
}

func TestChecker_TurnsAfterItsThresholds(t *testing.T) {
	one := execCheck("a")
	one.FailAfter, one.PassAfter, one.InitialDelay = 3, 2, 5*time.Second
	watch(t, check.Options{Checks: []muster.Check{one}}, func(t *testing.T, p *patient, c *check.Checker) {
		expect(t, p, c, muster.CheckUnknown, 0, 0)
		if c.Ran() {
			t.Error("it says that it has run")
		}
		time.Sleep(5 * time.Second)
		expect(t, p, c, muster.CheckUnknown, 1, 0)
		time.Sleep(10 * time.Second)
		expect(t, p, c, muster.CheckOK, 2, 1)
		if !c.Ran() {
			t.Error("it says that it has not run")
		}
		p.code.Store(2)
		time.Sleep(20 * time.Second)
		expect(t, p, c, muster.CheckOK, 4, 1)
		if r := c.Results()[0]; r.Output != "run 4" || !r.Since.Before(*r.At) {
			t.Errorf("%+v", r)
		}
		time.Sleep(10 * time.Second)
		expect(t, p, c, muster.CheckCritical, 5, 2)
	})
}

// TestChecker_LetsAServiceStart has services that don't answer at first: one for a moment, one for longer than an
// interval, and one that started long ago.
func TestChecker_LetsAServiceStart(t *testing.T) {
	for name, c := range map[string]struct {
		started time.Duration // ago
		ready   time.Duration // from now
		found   muster.CheckStatus
		after   time.Duration
		changes int64
	}{
		"soon":     {0, 500 * time.Millisecond, muster.CheckOK, time.Second, 1},
		"late":     {0, 15 * time.Second, muster.CheckCritical, 9900 * time.Millisecond, 1},
		"long ago": {time.Hour, 15 * time.Second, muster.CheckCritical, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, ready := &patient{}, time.Now().Add(c.ready)
				o := check.Options{Checks: []muster.Check{execCheck("a")}, Started: time.Now().Add(-c.started), Changed: func() { p.changes.Add(1) }}
				o.Probe.Exec = func(ctx context.Context, command []string, out io.Writer) (driver.Exit, error) {
					p.code.Store(2)
					if time.Now().After(ready) {
						p.code.Store(0)
					}
					return p.exec(ctx, command, out)
				}
				checker := check.New(o)
				ctx, cancel := context.WithCancel(t.Context())
				var group sync.WaitGroup
				group.Go(func() { _ = checker.Run(ctx) })
				time.Sleep(c.after)
				synctest.Wait()
				if r := checker.Results()[0]; r.Status != c.found || r.At == nil || p.changes.Load() != c.changes {
					t.Errorf("after %s it is %+v by %d changes, want %s by %d", c.after, r, p.changes.Load(), c.found, c.changes)
				}
				time.Sleep(30 * time.Second)
				if r := checker.Results()[0]; r.Status != muster.CheckOK {
					t.Errorf("at last it is %+v", r)
				}
				cancel()
				group.Wait()
			})
		})
	}
}

// TestChecker_OutputMakesNoChange is an hour of checks that print something else each time.
func TestChecker_OutputMakesNoChange(t *testing.T) {
	watch(t, check.Options{Checks: []muster.Check{execCheck("a")}}, func(t *testing.T, p *patient, c *check.Checker) {
		expect(t, p, c, muster.CheckOK, 1, 1)
		time.Sleep(time.Hour)
		expect(t, p, c, muster.CheckOK, 361, 1)
		if r := c.Results()[0]; r.Output != "run 361" {
			t.Errorf("%+v", r)
		}
	})
}

func TestChecker_HangingOnesHinderNobody(t *testing.T) {
	hangs := execCheck("a")
	hangs.Command, hangs.Timeout = []string{"hangs"}, 3*time.Second
	watch(t, check.Options{Checks: []muster.Check{hangs, execCheck("b")}}, func(t *testing.T, p *patient, c *check.Checker) {
		if all := c.Results(); all[0].Status != muster.CheckUnknown || all[1].Status != muster.CheckOK || c.Ran() {
			t.Errorf("%+v", all)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if all := c.Results(); all[0].Status != muster.CheckCritical || !c.Ran() {
			t.Errorf("%+v", all)
		}
	})
}

func TestChecker_Slots(t *testing.T) {
	hangs := execCheck("a")
	hangs.Command, hangs.Timeout = []string{"hangs"}, 3*time.Second
	second := hangs
	second.Name = "b"
	watch(t, check.Options{Checks: []muster.Check{hangs, second}, Slots: make(chan struct{}, 1)}, func(t *testing.T, p *patient, c *check.Checker) {
		if p.runs.Load() != 1 {
			t.Errorf("%d run at a time", p.runs.Load())
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if p.runs.Load() != 2 {
			t.Errorf("%d have run", p.runs.Load())
		}
	})
}

func TestChecker_GoesOnFromBefore(t *testing.T) {
	one := execCheck("a")
	one.FailAfter = 2
	since := time.Unix(1000, 0)
	before := []muster.CheckResult{{Name: "a", Status: muster.CheckOK, Since: &since}, {Name: "gone", Status: muster.CheckCritical}}
	watch(t, check.Options{Checks: []muster.Check{one}, Before: before, Started: time.Now().Add(-time.Hour)}, func(t *testing.T, p *patient, c *check.Checker) {
		expect(t, p, c, muster.CheckOK, 1, 0)
		if r := c.Results()[0]; !r.Since.Equal(since) {
			t.Errorf("%+v", r)
		}
	})
}

func TestChecker_TTL(t *testing.T) {
	ttl := muster.Check{Name: "a", Kind: muster.TTLCheck, Interval: 30 * time.Second}
	watch(t, check.Options{Checks: []muster.Check{ttl, execCheck("b")}}, func(t *testing.T, p *patient, c *check.Checker) {
		report := func(status muster.CheckStatus) {
			t.Helper()
			if err := c.Report("a", status, "said\x00"); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if r := c.Results()[0]; r.Status != status || r.Output != "said\uFFFD" {
				t.Errorf("%+v, want %s", r, status)
			}
		}
		report(muster.CheckOK)
		time.Sleep(29 * time.Second)
		report(muster.CheckWarning)
		time.Sleep(29 * time.Second)
		report(muster.CheckOK)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if r := c.Results()[0]; r.Status != muster.CheckCritical || r.Output != "nothing was reported for 30s" {
			t.Errorf("%+v", r)
		}
		report(muster.CheckOK)
		for name, code := range map[string]muster.Code{"b": muster.NotFound, "nosuch": muster.NotFound} {
			if err := c.Report(name, muster.CheckOK, ""); muster.CodeOf(err) != code {
				t.Errorf("a report of %s: %v", name, err)
			}
		}
		if err := c.Report("a", "FINE", ""); muster.CodeOf(err) != muster.Invalid {
			t.Errorf("a report of FINE: %v", err)
		}
	})
}

func TestChecker_WithoutChecksEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := check.New(check.Options{})
	if err := c.Run(ctx); err != nil || errors.Is(ctx.Err(), context.DeadlineExceeded) || !c.Ran() {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}
