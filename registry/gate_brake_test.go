package registry_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
)

// serve has a service of a node's run and register itself.
func (w *weather) serve(k int) {
	w.t.Helper()
	node := fmt.Sprint("n", k)
	i := w.launch(w.t, muster.LaunchInstanceInput{Type: muster.Nano, Image: "minimal", NodeID: &node})
	w.report(w.t, w.nodes[k], 1, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Running})
	in := web(i.ID)
	in.RegisterWhenStable = []muster.RegistrationSpec{{Cluster: "prod", Protocol: "http"}}
	s, _, err := w.DeployService(ctx, in)
	if err != nil {
		w.t.Fatal(err)
	}
	info := w.ServerInfo()
	_, _, err = w.ReportInstances(ctx, muster.ReportInstancesInput{
		UID: w.nodes[k].UID, Incarnation: 1, Sequence: 2, Epoch: info.Epoch, AppliedRevision: w.DesiredRevision(w.nodes[k]),
		Instances: []muster.InstanceReportInput{{
			Machine: i.Machine, Epoch: info.Epoch, ID: i.ID, Generation: i.Generation, Status: muster.Running,
			Services: []muster.ServiceReportInput{said(s, muster.ServiceRunning, muster.HealthOK)},
		}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// registered counts the entries of the services by their status.
func (w *weather) registered(when string, sure, stale int) {
	w.t.Helper()
	count := map[muster.EntryStatus]int{}
	for _, e := range entries(w.t, w.world, "web") {
		count[e.Status]++
	}
	if count[muster.EntryRegistered] != sure || count[muster.EntryStale] != stale {
		w.t.Errorf("%s there are the entries %v, want %d that are sure and %d stale", when, count, sure, stale)
	}
}

func TestGate_TheBrakeHoldsEntries(t *testing.T) {
	inWeather(t, 5, func(w *weather) {
		for k := range w.nodes {
			w.serve(k)
		}
		w.pass(15 * time.Second)
		w.registered("while all are well", 5, 0)
		w.silence(true, 0)
		w.pass(time.Minute)
		w.registered("without one node", 4, 0)
		w.silence(false, 0)
		w.pass(time.Minute)
		w.registered("when it is back", 5, 0)
		w.silence(true, 0, 1, 2, 3)
		w.pass(10 * time.Minute)
		w.wantBrake("after 10 min", muster.Holds)
		w.registered("while the brake holds", 1, 4)
		found, err := w.Registrations(muster.RegistrationFilter{Service: "web"}, true)
		if err != nil || len(found.Entries) != 1 || found.Entries[0].Status != muster.EntryRegistered {
			t.Errorf("preferred are %+v, %v", found, err)
		}
		w.silence(false, 0)
		w.pass(15 * time.Second)
		w.registered("when one returned", 2, 3)
		w.silence(false, 1, 2, 3)
		w.pass(time.Minute)
		w.registered("when all returned", 5, 0)
		w.silence(true, 0, 1, 2, 3)
		w.pass(10 * time.Minute)
		w.registered("while the brake holds again", 1, 4)
		if _, _, err := w.ReleaseBrake(ctx, "they burnt down"); err != nil {
			t.Fatal(err)
		}
		w.pass(15 * time.Second)
		w.registered("once it is released", 1, 0)
	})
}
