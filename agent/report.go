package agent

import (
	"context"
	"reflect"
)

// report tells the registry what is on the node whenever that may have changed.
// Only the newest report is ever sent: one that was not taken is made anew.
func (a *Agent) report(ctx context.Context) error {
	return a.whenever(ctx, a.reportDue, "a report was not taken", a.reportOnce)
}

// reportOnce sends what there is to report, unless the registry has that already.
func (a *Agent) reportOnce(ctx context.Context) error {
	if !a.isRegistered() {
		return nil // the registration will make a report due
	}
	report, err := a.inventory(ctx)
	if err != nil {
		return err
	}
	is, _ := a.identity()
	report.UID, report.Incarnation = is.UID, is.Incarnation
	a.mu.Lock()
	if a.state.accepted != nil && reflect.DeepEqual(a.state.accepted, report) {
		a.mu.Unlock()
		return nil
	}
	a.state.sequence++
	sent := *report
	sent.Sequence = a.state.sequence
	a.mu.Unlock()
	remove, err := a.o.Registry.ReportInstances(ctx, sent)
	a.mu.Lock()
	a.state.accepted, a.state.taken = report, sent.Sequence // without its sequence, to compare the next one with
	if err != nil {
		a.state.accepted = nil // it may have been taken all the same
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	a.named(remove)
	return nil
}
