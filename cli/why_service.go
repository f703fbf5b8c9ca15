package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// service says why a service is as it is.
func (w *answer) service(ctx context.Context, api *client.Client) error {
	s, err := api.Service(ctx, muster.ServiceID(w.ID))
	if err != nil {
		return err
	}
	w.Kind = "service"
	w.Summary = fmt.Sprintf("service %s (%s) is %s in %s", s.ID, s.Name, serviceState(s), s.InstanceID)
	if s.Node != nil {
		w.Summary += " on " + string(s.Node.ID)
	}
	if s.Status == muster.ServiceRemoved || s.Status == muster.ServiceRemoving {
		w.because("%s", s.StatusReason)
		return nil
	}
	if err := w.itsInstance(ctx, api, s); err != nil {
		return err
	}
	if len(w.Because) == 0 {
		w.explainService(s)
	}
	return nil
}

// itsInstance says what keeps a service from running in its instance and its node.
func (w *answer) itsInstance(ctx context.Context, api *client.Client, s *client.Service) error {
	i, err := api.Instance(ctx, s.InstanceID)
	switch {
	case muster.CodeOf(err) == muster.NotFound:
		w.because("its instance %s is gone", s.InstanceID)
		w.advise("deploy it anew, into another one")
		return nil
	case err != nil:
		return err
	case i.Status == muster.Running && i.UnhealthyBecause == nil:
		return nil
	case i.Status == muster.Running:
		w.because("%s", i.UnhealthyBecause.Reason)
		w.advise("see about the node: muster why %s", nodeOf(i))
		return nil
	case s.Desired != muster.WantRunning:
		return nil
	}
	w.because("its instance %s is %s", i.ID, i.Status)
	return w.explainInstance(ctx, api, i)
}

// explainService says it by the service's own status.
func (w *answer) explainService(s *client.Service) {
	switch s.Status {
	case muster.ServiceRunning:
		w.runs(s)
	case muster.ServiceDeploying, muster.ServicePending:
		w.because("its node gets it ready: %s", s.StatusReason)
		w.advise("see how it gets on: muster watch --service %s", s.ID)
	case muster.ServiceStopped, muster.ServiceStopping:
		w.because("%s", stoppedBecause(s))
		w.advise("start it: muster service start %s", s.ID)
	case muster.ServiceRestarting:
		w.because("%s", orNothing(s.StatusReason))
		w.because("its policy starts it again, %s; it did so %s until now", restartText(s), counted(s.Restarts, "time"))
		w.looks(s)
	case muster.ServiceLost:
		w.because("%s", orNothing(s.StatusReason))
		w.advise("deploy it anew; it comes back by itself if its node does")
	default:
		w.because("%s", orNothing(s.StatusReason))
		if s.ExitCode != nil && !strings.Contains(s.StatusReason, "status") {
			w.because("its process ended with status %d", *s.ExitCode)
		}
		w.looks(s)
		w.advise("once that is put right, start it again: muster service restart %s", s.ID)
	}
}

// lowestFree is the first port that needs no rights to listen at.
const lowestFree = 1024

// looks says where to look when the process of a service ends or cannot be.
func (w *answer) looks(s *client.Service) {
	w.logs(s)
	if s.Port > 0 && s.Port < lowestFree && s.User == "" && listened(s.StatusReason) {
		w.advise("ports below %d are root's: have it listen at a higher one, or deploy it with --user root", lowestFree)
	}
}

// listened reports whether a process that was not allowed something ran, so that it may be a port.
func listened(reason string) bool {
	return strings.Contains(strings.ToLower(reason), "permission denied") && !strings.Contains(reason, "could not start")
}

// logs says where to read what a service wrote. Of one that is announced nobody but its instance may have it.
func (w *answer) logs(s *client.Service) {
	if s.Announced {
		w.advise("see what its instance wrote: muster logs %s", s.InstanceID)
		return
	}
	w.advise("see what the service wrote: muster logs %s", s.ID)
}

// stoppedBecause is why a service does not run, when that is as it should be.
func stoppedBecause(s *client.Service) string {
	switch {
	case s.StatusReason != "":
		return s.StatusReason
	case s.Desired == muster.WantStopped:
		return "it was stopped, see by whom below"
	case s.ExitCode != nil:
		return fmt.Sprintf("its process ended by itself, with status %d", *s.ExitCode)
	}
	return orNothing("")
}

func orNothing(reason string) string {
	if reason == "" {
		return "no reason given"
	}
	return reason
}

// runs says what the checks of a service that runs found.
func (w *answer) runs(s *client.Service) {
	found := map[string]muster.CheckResult{}
	for _, r := range s.CheckResults {
		found[r.Name] = r
	}
	for _, c := range s.Checks {
		if r, ok := found[c.Name]; !ok || r.Status != muster.CheckOK {
			w.check(s, c, r)
		}
	}
	switch {
	case s.Health == muster.HealthOK:
		w.Well = true
		w.because("its process runs, and all of its checks are OK")
	case len(w.Because) == 0:
		w.because("%s", orNothing(serviceReason(s)))
		w.logs(s)
	}
}

// check says what a check found that is not OK, and how to find out more.
func (w *answer) check(s *client.Service, c muster.Check, r muster.CheckResult) {
	what := checkText(c, s.Port)
	if r.At == nil && r.Status != muster.CheckCritical {
		w.because("its check %s (%s) has not said anything yet; it runs every %s", c.Name, what, span(c.Interval))
		w.advise("see how it gets on: muster watch --service %s", s.ID)
		return
	}
	text := fmt.Sprintf("its check %s (%s) is %s", c.Name, what, r.Status)
	if r.Since != nil {
		text += " for " + ago(time.Now(), *r.Since)
	}
	if last := lastLines(r.Output); last != "" {
		text += ", and says:\n" + last
	}
	w.because("%s", text)
	w.logs(s)
	switch c.Kind {
	case muster.ExecCheck:
		w.advise("run the check yourself: muster exec %s -- %s", s.ID, words(c.Command))
	case muster.TTLCheck:
		w.advise("have it said in time: muster service check %s %s ok", s.ID, c.Name)
	}
}
