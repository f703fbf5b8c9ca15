package registry_test

import (
	"testing"

	"github.com/muster-cloud/muster"
)

func TestReportInstances_PayloadThatEnds(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 1024)
	i := w.launch(t, launch(muster.Nano))
	seven := 7
	_, _, err := w.ReportInstances(ctx, muster.ReportInstancesInput{
		UID: n.UID, Incarnation: 1, Sequence: 1, Epoch: w.ServerInfo().Epoch, AppliedRevision: w.DesiredRevision(n),
		Instances: []muster.InstanceReportInput{{
			Machine: i.Machine, Epoch: w.ServerInfo().Epoch, ID: i.ID, Generation: 1, Status: muster.Failed,
			Reason: "exited with status 7", ExitCode: &seven, Output: "no such file\n\x00\xff",
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := wantStatus(t, w, i.ID, muster.Failed)
	if *got.ExitCode != 7 || got.StatusReason != "exited with status 7" || got.Output != "no such file\n\uFFFD\uFFFD" || got.Reserved {
		t.Errorf("got %+v", got)
	}
	a, err := w.Assignments(t.Context(), n.UID, 1)
	if err != nil || !a.Instances[0].Ended {
		t.Errorf("the agent would start it again: %+v, %v", a, err)
	}
}

// Who asked for a stop, and why, outlives the node's word that it has stopped.
func TestReportInstances_WhatWasAskedForStays(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 1024)
	i := w.launch(t, launch(muster.Nano))
	report := func(sequence int64, status muster.InstanceStatus, reason string) {
		_, _, err := w.ReportInstances(ctx, muster.ReportInstancesInput{
			UID: n.UID, Incarnation: 1, Sequence: sequence, Epoch: w.ServerInfo().Epoch, AppliedRevision: w.DesiredRevision(n),
			Instances: []muster.InstanceReportInput{{Machine: i.Machine, Epoch: w.ServerInfo().Epoch, ID: i.ID, Generation: 1, Status: status, Reason: reason}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	report(1, muster.Running, "")
	if _, _, err := w.StopInstance(ctx, i.ID); err != nil {
		t.Fatal(err)
	}
	report(2, muster.Stopped, "stopped")
	first := wantStatus(t, w, i.ID, muster.Stopped)
	if first.StatusReason != "stop was asked for" {
		t.Errorf("it is STOPPED because %q", first.StatusReason)
	}
	report(3, muster.Stopped, "stopped")
	if again := wantStatus(t, w, i.ID, muster.Stopped); again.StatusReason != first.StatusReason || again.Revision != first.Revision {
		t.Errorf("its node's next report changed it to %+v", again)
	}
}

func TestReportInstances_AbsenceIsNotEvidence(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 1024)
	i := w.launch(t, launch(muster.Nano))
	absent := func(sequence, applied int64, epoch string) {
		t.Helper()
		if _, _, err := w.ReportInstances(ctx, muster.ReportInstancesInput{
			UID: n.UID, Incarnation: 1, Sequence: sequence, Epoch: epoch, AppliedRevision: applied,
		}); err != nil {
			t.Fatal(err)
		}
	}
	epoch := w.ServerInfo().Epoch
	absent(1, i.DesiredRevision-1, epoch)
	wantStatus(t, w, i.ID, muster.Provisioning)
	absent(2, i.DesiredRevision, "another")
	wantStatus(t, w, i.ID, muster.Provisioning)
	absent(3, i.DesiredRevision, epoch)
	wantStatus(t, w, i.ID, muster.Failed)
}

func TestReportInstances_OlderIsIgnored(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 1024)
	i := w.launch(t, launch(muster.Nano))
	w.report(t, n, 5, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Running})
	w.report(t, n, 4, nil)
	wantStatus(t, w, i.ID, muster.Running)
}

func TestHeartbeat_TellsWhichReportWasApplied(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 1024)
	applied := func() int64 {
		t.Helper()
		beat, err := w.Heartbeat(ctx, muster.HeartbeatInput{UID: n.UID, Incarnation: 1})
		if err != nil {
			t.Fatal(err)
		}
		return beat.ReportSequence
	}
	if got := applied(); got != 0 {
		t.Errorf("after the registration it is %d", got)
	}
	w.report(t, n, 5, nil)
	w.report(t, n, 4, nil) // ignored
	if got := applied(); got != 5 {
		t.Errorf("after report 5 it is %d", got)
	}
	again := nodeInput("n1", 2, 1024)
	again.UID = &n.UID
	if _, err := w.RegisterNode(ctx, again); err != nil {
		t.Fatal(err)
	}
	if got := applied(); got != 0 {
		t.Errorf("after a registration that came once more it is %d", got)
	}
}

func TestReportInstances_ImpossibleIsCountedNotRefused(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 1024)
	bad, good := w.launch(t, launch(muster.Nano)), w.launch(t, launch(muster.Nano))
	w.report(t, n, 1, map[muster.InstanceID]muster.InstanceStatus{bad.ID: muster.Stopped, good.ID: muster.Running})
	w.report(t, n, 2, map[muster.InstanceID]muster.InstanceStatus{bad.ID: muster.Running, good.ID: muster.Stopped})
	wantStatus(t, w, bad.ID, muster.Stopped)
	wantStatus(t, w, good.ID, muster.Stopped)
	if got := w.Stats().Ignored; got != 1 {
		t.Errorf("%d parts ignored, want 1", got)
	}
}

func TestReportInstances_WhatEndedDoesNotComeBackByItself(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 128)
	ended := w.launch(t, launch(muster.Nano))
	w.report(t, n, 1, map[muster.InstanceID]muster.InstanceStatus{ended.ID: muster.Failed})
	next := w.launch(t, launch(muster.Nano)) // takes what was freed
	for sequence, status := range []muster.InstanceStatus{muster.Provisioning, muster.Running, muster.Stopping} {
		w.report(t, n, int64(sequence+2), map[muster.InstanceID]muster.InstanceStatus{ended.ID: status, next.ID: muster.Running})
		wantStatus(t, w, ended.ID, muster.Failed)
	}
	checkCapacity(t, w)
}

func TestReportInstances_TerminatedMachinesAreNamed(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 1024)
	i := w.launch(t, launch(muster.Nano))
	if _, _, err := w.TerminateInstance(ctx, i.ID); err != nil {
		t.Fatal(err)
	}
	w.report(t, n, 1, nil)
	if remove := w.report(t, n, 2, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Running}); len(remove) != 1 || remove[0] != i.Machine {
		t.Errorf("remove %v, want %s", remove, i.Machine)
	}
}

func TestReportInstances_StrangersAreKept(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 2, 1024)
	known := w.launch(t, launch(muster.Nano))
	stranger := muster.InstanceReportInput{
		Machine: "ffffff-i-9-1", Epoch: "0123456789abcdef", ID: "i-9", Generation: 1, Status: muster.Running, CPULimit: 50, MemLimitMB: 256, BaseImage: "minimal",
	}
	report := func(sequence int64, instances ...muster.InstanceReportInput) []string {
		t.Helper()
		remove, _, err := w.ReportInstances(ctx, muster.ReportInstancesInput{UID: n.UID, Incarnation: 1, Sequence: sequence, Epoch: w.ServerInfo().Epoch, Instances: instances})
		if err != nil {
			t.Fatal(err)
		}
		return remove
	}
	for sequence := range int64(3) {
		if remove := report(sequence+1, stranger); len(remove) != 0 {
			t.Fatalf("a stranger is to be removed: %v", remove)
		}
	}
	got := wantStatus(t, w, "i-2", muster.Unknown)
	if got.Machine != "ffffff-i-9-1" || got.Type != muster.Micro || !got.Reserved {
		t.Errorf("stranger %+v", got)
	}
	if held := w.Allocated(n); held.MemoryMB != 128+256 || held.Instances != 2 {
		t.Errorf("allocated %+v: the stranger has to count", held)
	}
	wantStatus(t, w, known.ID, muster.Provisioning)
	if next := w.launch(t, launch(muster.Nano)); next.ID != "i-3" {
		t.Errorf("next id %s, want i-3", next.ID)
	}
	report(4)
	wantStatus(t, w, "i-2", muster.Terminated)

	stranger.Machine = "ffffff-i-10-3"
	stranger.ID, stranger.Generation = "i-10", 3
	report(5, stranger)
	adopted, _, err := w.AdoptInstance(ctx, "i-4")
	if err != nil || adopted.Status != muster.Running || adopted.Machine != "ffffff-i-10-3" {
		t.Fatalf("adopted %+v, %v", adopted, err)
	}
	_, _, err = w.AdoptInstance(ctx, "i-4")
	wantCode(t, err, muster.Conflict)
	seven := 7
	ended := stranger
	ended.Status, ended.ExitCode = muster.Failed, &seven
	report(6, ended)
	wantStatus(t, w, "i-4", muster.Failed)
	again, _, err := w.StartInstance(ctx, "i-4")
	if err != nil || again.Machine != "ffffff-i-10-4" {
		t.Errorf("started again as %+v, %v; want the machine name to keep the disk's", again, err)
	}
	other := stranger
	other.Machine = "ffffff-i-11-1"
	report(7, stranger, other)
	if gone, _, err := w.TerminateInstance(ctx, "i-5"); err != nil || gone.Status != muster.Terminating {
		t.Fatalf("terminating a stranger: %+v, %v", gone, err)
	}
	report(8, stranger, other)
	wantStatus(t, w, "i-5", muster.Terminating) // it is there still
	a, err := w.Assignments(t.Context(), n.UID, 1)
	if err != nil || a.Instances[len(a.Instances)-1].Machine != other.Machine || a.Instances[len(a.Instances)-1].Desired != muster.WantTerminated {
		t.Errorf("assignments %+v, %v", a, err)
	}
	if _, _, err := w.ReportInstances(ctx, muster.ReportInstancesInput{
		UID: n.UID, Incarnation: 1, Sequence: 9, Epoch: w.ServerInfo().Epoch, AppliedRevision: w.DesiredRevision(n), Instances: []muster.InstanceReportInput{stranger},
	}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, w, "i-5", muster.Terminated)
	if remove := report(10, stranger, other); len(remove) != 1 || remove[0] != other.Machine {
		t.Errorf("remove %v, want the terminated stranger", remove)
	}
}
