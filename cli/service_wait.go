package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// serviceGoal is what a service is waited for to become.
type serviceGoal string

const (
	serviceHealthy serviceGoal = "HEALTHY"
	serviceStopped serviceGoal = "STOPPED"
	serviceRemoved serviceGoal = "REMOVED"
)

// judge says whether a service reached the goal, missed it for good, or may still get
// there. s is nil when the registry does not have it any more.
func (g serviceGoal) judge(s *client.Service) verdict {
	if s == nil {
		return verdictOf(g == serviceRemoved)
	}
	switch s.Status {
	case muster.ServiceRunning:
		if g == serviceHealthy && s.Health == muster.HealthOK {
			return reached
		}
	case muster.ServiceStopped:
		if g == serviceHealthy { // a command that ended by itself, and well, has done what it should
			return verdictOf(s.Desired == muster.WantRunning && s.ExitCode != nil && *s.ExitCode == 0)
		}
		return verdictOf(g == serviceStopped)
	case muster.ServiceFailed: // it does not run, which is what a stop is for
		if g != serviceRemoved {
			return verdictOf(g == serviceStopped)
		}
	case muster.ServiceLost:
		if g != serviceRemoved {
			return missed
		}
	case muster.ServiceRemoved, muster.ServiceRemoving:
		if g != serviceRemoved {
			return missed
		}
		if s.Status == muster.ServiceRemoved {
			return reached
		}
	}
	return undecided
}

// judgeInstance says whether the instance of a service keeps it from the goal for good.
func (g serviceGoal) judgeInstance(i *client.Instance) verdict {
	if g == serviceHealthy {
		switch i.Status {
		case muster.Failed, muster.Stopped, muster.Lost, muster.Terminating, muster.Terminated:
			return missed
		}
	}
	return undecided
}

// service returns what to wait for; nil: nothing.
func (w *waitFlags) service(g serviceGoal) *serviceWaiting {
	if !w.wanted {
		return nil
	}
	return &serviceWaiting{goal: g, timeout: w.timeout}
}

// serviceWaiting is a goal and how long it may take.
type serviceWaiting struct {
	goal    serviceGoal
	timeout time.Duration
}

// finishService waits if it was asked to, and prints the service as it is then.
func (a *app) finishService(ctx context.Context, api *client.Client, s *client.Service, w *serviceWaiting) error {
	var failure error
	if w != nil {
		line := startProgress(ctx, a.std.Err, serviceProgress(s))
		s, failure = w.await(ctx, api, s, func(s *client.Service) { line.show(serviceProgress(s)) })
		line.stop()
	}
	if wait := (*waitError)(nil); failure != nil && !errors.As(failure, &wait) {
		return failure
	}
	err := a.write(s, func(out io.Writer) { a.printServices(out, []*client.Service{s}) })
	return errors.Join(failure, err)
}

// serviceProgress says how a service gets on.
func serviceProgress(s *client.Service) string {
	text := fmt.Sprintf("%s %s", s.ID, s.Status)
	if s.Node != nil {
		text += " on " + string(s.Node.ID)
	}
	if s.Status == muster.ServiceRunning {
		text += ", " + string(s.Health)
	}
	if reason := serviceReason(s); reason != "" {
		text += ": " + reason
	}
	return text
}

// serviceWatch is one waiting for a service and its instance.
type serviceWatch struct {
	*serviceWaiting
	show func(*client.Service)

	mu      sync.Mutex
	service *client.Service // as it was last seen
	present bool            // it was seen since the watch began
	outcome verdict
	because string // of its instance
}

// await follows a service and its instance until the goal is reached or missed, or the
// time is up. It returns the service as it was last seen.
func (w *serviceWaiting) await(ctx context.Context, api *client.Client, s *client.Service, show func(*client.Service)) (*client.Service, error) {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	watch := &serviceWatch{serviceWaiting: w, service: s, show: show}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		return api.WatchServices(ctx, &muster.ServiceFilter{InstanceID: &s.InstanceID, Name: &s.Name}, client.WatchOptions{}, watch.onService)
	})
	both.Go(func() error {
		filter := &muster.HealthFilter{InstanceID: &s.InstanceID, Kinds: []muster.ChangeKind{muster.KindInstance}}
		err := api.WatchHealth(ctx, filter, client.WatchOptions{}, watch.onInstance)
		if muster.CodeOf(err) == muster.NotFound { // it is gone, and the service with it: the other watch sees that
			return nil
		}
		return err
	})
	err := both.Wait()
	watch.mu.Lock()
	defer watch.mu.Unlock()
	s = watch.service
	switch {
	case watch.outcome == reached:
		return s, nil
	case watch.outcome == missed:
		return s, &waitError{fmt.Sprintf("%s is %s instead of %s: %s; see muster why %s", s.ID, s.Status, w.goal, watch.reason(), s.ID)}
	case errors.Is(err, context.DeadlineExceeded):
		return s, &waitError{fmt.Sprintf("%s is still %s after %s instead of %s; it goes on in the background, see muster why %s", s.ID, serviceState(s), span(w.timeout), w.goal, s.ID)}
	}
	return s, err
}

func (w *serviceWatch) reason() string {
	if w.because != "" {
		return w.because
	}
	if reason := serviceReason(w.service); reason != "" {
		return reason
	}
	return "no reason given"
}

// onService takes what became of the service. A removed one of the same name is not it.
func (w *serviceWatch) onService(e client.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.Service != nil && e.Service.ID == w.service.ID:
		w.service, w.present = e.Service, true
		w.show(e.Service)
		w.outcome = w.goal.judge(e.Service)
	case e.Type == muster.EventSynced && !w.present:
		w.outcome = w.goal.judge(nil)
	}
	return w.decided()
}

// onInstance takes what became of its instance.
func (w *serviceWatch) onInstance(e client.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Instance != nil && w.outcome == undecided {
		if w.outcome = w.goal.judgeInstance(e.Instance); w.outcome == missed {
			w.because = strings.TrimSuffix(fmt.Sprintf("its instance %s is %s: %s", e.Instance.ID, e.Instance.Status, e.Instance.StatusReason), ": ")
		}
	}
	return w.decided()
}

func (w *serviceWatch) decided() error {
	if w.outcome != undecided {
		return errDecided
	}
	return nil
}
