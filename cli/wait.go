package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// goal is what an instance is waited for to become.
type goal string

const (
	running    goal = "RUNNING"
	stopped    goal = "STOPPED"
	terminated goal = "TERMINATED"
)

// verdict is what a status means for a goal.
type verdict int

const (
	undecided verdict = iota
	reached
	missed
)

// judge says whether an instance reached the goal, missed it for good, or may
// still get there. i is nil when the registry does not have it any more.
func (g goal) judge(i *client.Instance) verdict {
	if i == nil {
		return verdictOf(g == terminated)
	}
	switch i.Status {
	case muster.InstanceStatus(g):
		return reached
	case muster.Stopped:
		// A command that ended by itself, and well, before anybody saw it run.
		if g == running && i.Desired == muster.WantRunning {
			return verdictOf(i.ExitCode != nil && *i.ExitCode == 0)
		}
	case muster.Failed: // it does not run, which is what a stop is for
		if g != terminated {
			return verdictOf(g == stopped)
		}
	case muster.Terminated, muster.Terminating, muster.Lost:
		if g != terminated || i.Status == muster.Lost {
			return missed
		}
	}
	return undecided
}

func verdictOf(ok bool) verdict {
	if ok {
		return reached
	}
	return missed
}

// waitFlags are --wait and how long.
type waitFlags struct {
	wanted  bool
	timeout time.Duration
}

func (w *waitFlags) declare(f *pflag.FlagSet) {
	f.BoolVar(&w.wanted, "wait", false, "wait until it is done")
	f.DurationVar(&w.timeout, "wait-timeout", 2*time.Minute, "with --wait: how long at most")
}

// goal returns what to wait for; nil: nothing.
func (w *waitFlags) goal(g goal) *waiting {
	if !w.wanted {
		return nil
	}
	return &waiting{goal: g, timeout: w.timeout}
}

// waiting is a goal and how long it may take.
type waiting struct {
	goal    goal
	timeout time.Duration
}

// finish waits if it was asked to, and prints the instance as it is then.
func (a *app) finish(ctx context.Context, api *client.Client, i *client.Instance, w *waiting) error {
	var failure error
	if w != nil {
		line := startProgress(ctx, a.std.Err, instanceProgress(i))
		i, failure = await(ctx, api, i, w, func(i *client.Instance) { line.show(instanceProgress(i)) })
		line.stop()
	}
	if wait := (*waitError)(nil); failure != nil && !errors.As(failure, &wait) {
		return failure
	}
	err := a.write(i, func(out io.Writer) { a.printInstances(out, []*client.Instance{i}) })
	return errors.Join(failure, err)
}

// errDecided ends a watch that has seen enough.
var errDecided = errors.New("decided")

// await follows an instance until the goal is reached or missed, or the time is
// up, and shows it each time that it changed. It returns the instance as it was
// last seen.
func await(ctx context.Context, api *client.Client, i *client.Instance, w *waiting, show func(*client.Instance)) (*client.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	outcome, present := undecided, false
	err := api.WatchHealth(ctx, &muster.HealthFilter{InstanceID: &i.ID}, client.WatchOptions{}, func(e client.Event) error {
		switch {
		case e.Instance != nil:
			i, present = e.Instance, true
			show(i)
			outcome = w.goal.judge(i)
		case e.Type == muster.EventSynced && !present:
			outcome = w.goal.judge(nil)
		}
		if outcome != undecided {
			return errDecided
		}
		return nil
	})
	switch {
	case outcome == reached:
		return i, nil
	case outcome == missed:
		return i, &waitError{fmt.Sprintf("%s is %s instead of %s: %s; see muster instance show %s", i.ID, i.Status, w.goal, reasonOr(i), i.ID)}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return i, &waitError{fmt.Sprintf("%s is still %s after %s instead of %s; it goes on in the background, see muster instance show %s", i.ID, i.Status, span(w.timeout), w.goal, i.ID)}
	}
	return i, err
}

func reasonOr(i *client.Instance) string {
	if i.StatusReason == "" {
		return "no reason given"
	}
	return i.StatusReason
}
