package registry_test

import (
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
)

// TestService_IsMadeOfWhatCameFirst has its node tell what it fetched, which is wanted of it from then on.
func TestService_IsMadeOfWhatCameFirst(t *testing.T) {
	h := newHost(t, setup{})
	first, later := strings.Repeat("a", 64), strings.Repeat("b", 64)
	open := h.deploy(t, func(in *muster.DeployServiceInput) { in.DeployURL = "http://h/app" })
	given := h.deploy(t, func(in *muster.DeployServiceInput) {
		in.Name, in.Port, in.DeployURL, in.SHA256 = "given", 81, "http://h/app", strings.ToUpper(first)
	})
	report := func(checksum string) {
		t.Helper()
		one, other := said(h.Service(open.ID), muster.ServiceRunning, muster.HealthOK), said(h.Service(given.ID), muster.ServiceRunning, muster.HealthOK)
		one.SHA256, other.SHA256 = checksum, checksum
		h.tell(t, muster.Running, one, other)
	}
	report("")
	if got := h.Service(open.ID).SHA256; got != "" {
		t.Errorf("before it is known, it is made of %q", got)
	}
	for _, checksum := range []string{first, later, ""} {
		report(checksum)
		for _, id := range []muster.ServiceID{open.ID, given.ID} {
			if got := h.Service(id).SHA256; got != first {
				t.Errorf("after a report of %.2q, %s is made of %q, want %q", checksum, id, got, first)
			}
		}
	}
	assigned, err := h.Assignments(ctx, h.node.UID, 1)
	if err != nil || assigned.Instances[0].Services[0].SHA256 != first {
		t.Errorf("assigned: %+v, %v", assigned, err)
	}
	before := h.ServerInfo().Revision
	report(first)
	if after := h.ServerInfo().Revision; after != before {
		t.Errorf("the same report made %d changes", after-before)
	}
	bad := said(h.Service(open.ID), muster.ServiceRunning, muster.HealthOK)
	bad.SHA256 = "x"
	i := h.Instance(h.instance.ID)
	_, _, err = h.ReportInstances(ctx, muster.ReportInstancesInput{
		UID: h.node.UID, Incarnation: h.node.Incarnation, Sequence: h.sequence + 1, Epoch: h.ServerInfo().Epoch,
		Instances: []muster.InstanceReportInput{{Machine: i.Machine, ID: i.ID, Generation: i.Generation, Status: muster.Running, Services: []muster.ServiceReportInput{bad}}},
	})
	if muster.CodeOf(err) != muster.Invalid || !strings.Contains(err.Error(), "no SHA-256 checksum") {
		t.Errorf("a report of no checksum: %v", err)
	}
}
