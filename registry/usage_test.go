package registry_test

import (
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

func TestUsage_IsToldByBeatsAndCommitsNothing(t *testing.T) {
	w, n, i, _ := logged(t, registry.Options{})
	if u := w.NodeUsage(n); u != nil {
		t.Errorf("before it was told: %+v", u)
	}
	statements, head := w.store.Statements(), w.hub.Head()
	peak, disk, measured := 20, 300, time.Now().Add(time.Hour-5*time.Minute)
	beat := func(in *muster.UsageInput) {
		t.Helper()
		sent := time.Now().Add(time.Hour) // its clock is wrong
		if _, err := w.Heartbeat(ctx, muster.HeartbeatInput{UID: n.UID, Incarnation: n.Incarnation, SentAt: &sent, Usage: in}); err != nil {
			t.Fatal(err)
		}
	}
	beat(&muster.UsageInput{CPUPercent: 150.5, MemoryMB: 900, Machines: []muster.MachineUsageInput{
		{Machine: i.Machine, CPUPercent: 25, MemoryMB: 12, MemoryPeakMB: &peak, DiskMB: &disk, DiskAt: &measured}, {Machine: "x\x00y", CPUPercent: 1}, {Machine: "other", CPUPercent: -3},
	}})
	beat(nil) // nothing new
	if u := w.NodeUsage(n); u == nil || u.CPUPercent != 150.5 || u.MemoryMB != 900 || u.MemoryPeakMB != nil || u.At.IsZero() {
		t.Errorf("the node uses %+v", u)
	}
	if u := w.InstanceUsage(i); u == nil || u.CPUPercent != 25 || u.MemoryMB != 12 || *u.MemoryPeakMB != 20 || *u.DiskMB != 300 {
		t.Errorf("the instance uses %+v", u)
	} else if age := u.At.Sub(*u.DiskAt); age < 4*time.Minute || age > 6*time.Minute {
		t.Errorf("its disk was measured %s before, want the five minutes by the node's clock", age)
	}
	beat(&muster.UsageInput{Machines: make([]muster.MachineUsageInput, 2*muster.MaxMachineUsages)})
	if u := w.InstanceUsage(i); u != nil {
		t.Errorf("it was not told of and uses %+v", u)
	}
	if now := w.store.Statements(); now != statements || w.hub.Head() != head {
		t.Errorf("%d statements and the position %v, want none and %v", now-statements, w.hub.Head(), head)
	}
	w.report(t, n, 2, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Stopped})
	beat(&muster.UsageInput{Machines: []muster.MachineUsageInput{{Machine: i.Machine, CPUPercent: 25}}})
	if u := w.InstanceUsage(w.Instance(i.ID)); u != nil {
		t.Errorf("it is stopped and uses %+v", u)
	}
}
