package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// instance says why an instance is as it is.
func (w *answer) instance(ctx context.Context, api *client.Client) error {
	i, err := api.Instance(ctx, muster.InstanceID(w.ID))
	if muster.CodeOf(err) == muster.NotFound && w.node(ctx, api) == nil {
		return nil // a node of such a name
	}
	if err != nil {
		return err
	}
	w.Kind = "instance"
	w.Summary = fmt.Sprintf("instance %s is %s", i.ID, i.Status)
	if i.Name != string(i.ID) {
		w.Summary = fmt.Sprintf("instance %s (%s) is %s", i.ID, i.Name, i.Status)
	}
	if node := nodeOf(i); node != "" {
		w.Summary += " on " + node
	}
	if err := w.explainInstance(ctx, api, i); err != nil {
		return err
	}
	if err := w.itsServices(ctx, api, i); err != nil {
		return err
	}
	if len(w.Because) == 0 {
		w.Well = true
		w.because("its process runs, and its node and its services are well")
	}
	return nil
}

// explainInstance says it by the status.
func (w *answer) explainInstance(ctx context.Context, api *client.Client, i *client.Instance) error {
	switch i.Status {
	case muster.Pending:
		return w.waits(ctx, api, i)
	case muster.Running:
		if i.UnhealthyBecause == nil {
			return nil
		}
		w.because("%s", i.UnhealthyBecause.Reason)
		w.advise("see about its node: muster why %s", nodeOf(i))
	case muster.Provisioning:
		w.because("its node gets it ready: %s", i.StatusReason)
		if i.UnhealthyBecause != nil && i.UnhealthyBecause.Reason != i.StatusReason {
			w.because("%s", i.UnhealthyBecause.Reason)
		}
		w.advise("see how it gets on: muster watch --instance %s", i.ID)
	case muster.Failed, muster.Stopped:
		w.ended(i)
	case muster.Lost:
		w.because("%s", reasonOr(i))
		w.advise("launch another one; it comes back by itself if its node does")
	case muster.Unknown:
		w.because("its node has it, and the registry knew nothing of it: %s", i.StatusReason)
		w.advise("take it in: muster instance adopt %s", i.ID)
		w.advise("or end it: muster instance terminate %s", i.ID)
	default:
		w.because("%s", reasonOr(i))
	}
	return nil
}

// waits says why no node takes it.
func (w *answer) waits(ctx context.Context, api *client.Client, i *client.Instance) error {
	refusals, err := api.PendingBecause(ctx, i.ID)
	if err != nil {
		return err
	}
	for _, r := range refusals {
		w.because("node %s does not take it: %s", r.NodeID, r.Reason)
		if strings.Contains(r.Reason, "cordoned") {
			w.advise("let the node take instances again: muster node uncordon %s", r.NodeID)
		}
	}
	if len(refusals) == 0 {
		w.because("%s", reasonOr(i))
	}
	if i.QueueDeadline != nil {
		w.because("it may wait until %s, and is FAILED then", moment(i.QueueDeadline))
	}
	w.advise("add a node, or make room: it is placed as soon as one fits")
	w.advise("or give it up: muster instance terminate %s", i.ID)
	return nil
}

// ended says how it ended.
func (w *answer) ended(i *client.Instance) {
	w.because("%s", reasonOr(i))
	if i.ExitCode != nil && !strings.Contains(i.StatusReason, "status") {
		w.because("its process ended with status %d", *i.ExitCode)
	}
	if last := lastLines(i.Output); last != "" {
		w.because("it wrote last:\n%s", last)
	}
	if i.Desired == muster.WantStopped && i.Status == muster.Stopped {
		w.advise("start it: muster instance start %s", i.ID)
		return
	}
	w.advise("see all that it wrote: muster logs %s", i.ID)
	w.advise("start it again: muster instance start %s", i.ID)
}

// lastLines are the last few lines of an output.
func lastLines(text string) string {
	const most = 5
	lines := strings.Split(strings.TrimRight(text, " \t\r\n"), "\n")
	return strings.Join(lines[max(len(lines)-most, 0):], "\n")
}

// itsServices names those of an instance's services that are not well.
func (w *answer) itsServices(ctx context.Context, api *client.Client, i *client.Instance) error {
	for s, err := range api.AllServices(ctx, &muster.ServiceFilter{InstanceID: &i.ID}) {
		if err != nil {
			return err
		}
		if s.Health == muster.HealthOK || s.Desired != muster.WantRunning || i.UnhealthyBecause != nil { // which is theirs too
			continue
		}
		if i.Status == muster.Running {
			w.because("its service %s (%s) is %s: %s", s.ID, s.Name, serviceState(s), serviceReason(s))
			w.advise("see about the service: muster why %s", s.ID)
		}
	}
	return nil
}
