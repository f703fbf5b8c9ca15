package registry_test

import (
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

// TestService_GetsItsPortLater has a service placed where no port is free, and started once there is one.
func TestService_GetsItsPortLater(t *testing.T) {
	w := open(t, setup{opts: registry.Options{PublishFrom: 30000, PublishTo: 30000}})
	in := muster.DeployServiceInput{Type: new(muster.Nano), Queue: true, Command: []string{"x"}, Port: 80, Publish: &muster.Published{Protocol: muster.TCP}}
	var all []*muster.Service
	for _, name := range []string{"first", "second"} {
		in.Name = name
		s, _, err := w.DeployService(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	w.join(t, "n1", 4, 4096)
	first, second := w.Service(all[0].ID), w.Service(all[1].ID)
	if first.Publish.Port != 30000 || second.Publish.Port != 0 || second.Status != muster.ServiceFailed || !strings.Contains(second.StatusReason, "every port") {
		t.Fatalf("placed they are %+v and %+v", first, second)
	}
	_, _, err := w.StartService(ctx, second.ID)
	wantCode(t, err, muster.NoCapacity)
	if _, _, err := w.RemoveService(ctx, first.ID); err != nil {
		t.Fatal(err)
	}
	w.report(t, w.Node("n1"), 1, map[muster.InstanceID]muster.InstanceStatus{second.InstanceID: muster.Running})
	started, _, err := w.StartService(ctx, second.ID)
	if err != nil || started.Publish.Port != 30000 {
		t.Errorf("started, it is %+v, %v", started, err)
	}
	checkLog(t, w)
}

// TestService_GetsItsPortWithItsInstance is TestService_GetsItsPortLater for one whose instance is started again.
func TestService_GetsItsPortWithItsInstance(t *testing.T) {
	w := open(t, setup{opts: registry.Options{PublishFrom: 30000, PublishTo: 30000}})
	in := muster.DeployServiceInput{Type: new(muster.Nano), Queue: true, Command: []string{"x"}, Port: 80, Publish: &muster.Published{Protocol: muster.TCP}}
	in.Name = "first"
	first, _, err := w.DeployService(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	in.Name = "second"
	second, _, err := w.DeployService(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	w.join(t, "n1", 4, 4096)
	w.report(t, w.Node("n1"), 1, nil)
	wantStatus(t, w, second.InstanceID, muster.Failed)
	if _, _, err := w.RemoveService(ctx, first.ID); err != nil {
		t.Fatal(err)
	}
	w.report(t, w.Node("n1"), 2, nil)
	if _, _, err := w.StartInstance(ctx, second.InstanceID); err != nil {
		t.Fatal(err)
	}
	if s := w.Service(second.ID); s.Status != muster.ServicePending || s.Publish.Port != 30000 {
		t.Errorf("with its instance, it is %+v", s)
	}
	checkLog(t, w)
}
