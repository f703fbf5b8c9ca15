package registry_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

// tellAs is tell of another start of the instance than its present one.
func (h *host) tellAs(t *testing.T, generation int64, status muster.InstanceStatus, services ...muster.ServiceReportInput) {
	t.Helper()
	info := h.ServerInfo()
	i := h.Instance(h.instance.ID)
	h.sequence++
	_, _, err := h.ReportInstances(ctx, muster.ReportInstancesInput{
		UID: h.node.UID, Incarnation: h.node.Incarnation, Sequence: h.sequence, Epoch: info.Epoch,
		Instances: []muster.InstanceReportInput{{
			Machine: i.Machine, Epoch: info.Epoch, ID: i.ID, Generation: generation, Status: status, Services: services,
		}},
	})
	if err != nil {
		t.Fatalf("report: %v", err)
	}
}

// A report that was under way when the instance was restarted is of the start before: what
// it says of the services must not open the gate for those of this one.
func TestService_AReportOfAnEarlierStartSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, setup{})
		s := registered(t, h, nil)
		well := said(s, muster.ServiceRunning, muster.HealthOK)
		h.tell(t, muster.Running, well)
		wantEntries(t, h.world, "web", 1)
		if _, _, err := h.RestartInstance(ctx, h.instance.ID); err != nil {
			t.Fatal(err)
		}
		h.tellAs(t, 1, muster.Running, well)
		wantService(t, h, s.ID, muster.ServicePending, muster.HealthBad)
		h.tell(t, muster.Running)
		wantService(t, h, s.ID, muster.ServiceDeploying, muster.HealthUnknown)
		wantEntries(t, h.world, "web", 0)
		h.tellAs(t, 3, muster.Running, well)
		wantService(t, h, s.ID, muster.ServiceDeploying, muster.HealthUnknown)
		h.tell(t, muster.Running, well)
		wantEntries(t, h.world, "web", 1)
		checkLog(t, h.world)
	})
}

// An instance that has ended stays so until it is started, whatever is said of it.
func TestService_NothingRunsInAnInstanceThatHasEnded(t *testing.T) {
	h := newHost(t, setup{})
	s := h.deploy(t, nil)
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	h.tell(t, muster.Failed)
	wantService(t, h, s.ID, muster.ServicePending, muster.HealthBad)
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	wantService(t, h, s.ID, muster.ServicePending, muster.HealthBad)
	checkLog(t, h.world)
}

func TestService_SomeStatusesAreNotForAgentsToSay(t *testing.T) {
	for _, status := range []muster.ServiceStatus{muster.ServicePending, muster.ServiceLost, muster.ServiceRemoving, muster.ServiceRemoved} {
		t.Run(string(status), func(t *testing.T) {
			h := newHost(t, setup{})
			s := h.deploy(t, nil)
			h.tell(t, muster.Running, said(s, status, muster.HealthUnknown))
			wantService(t, h, s.ID, muster.ServiceDeploying, muster.HealthUnknown)
			h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
			wantService(t, h, s.ID, muster.ServiceRunning, muster.HealthOK)
		})
	}
}

// A service ends with its instance, at nearly the same time, and the record of both goes
// at the same: that must not be in the way of all else that ends.
func TestService_IsForgottenWithItsInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, setup{opts: registry.Options{TerminatedTTL: time.Minute}})
		s := h.deploy(t, nil)
		early := h.deploy(t, func(in *muster.DeployServiceInput) { in.Name, in.Port = "early", 81 })
		if _, _, err := h.RemoveService(ctx, early.ID); err != nil {
			t.Fatal(err)
		}
		h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
		time.Sleep(30 * time.Second)
		if _, _, err := h.TerminateInstance(ctx, h.instance.ID); err != nil {
			t.Fatal(err)
		}
		h.report(t, h.node, h.sequence+1, nil)
		wantService(t, h, s.ID, muster.ServiceRemoved, muster.HealthUnknown)
		time.Sleep(35 * time.Second)
		if h.Service(early.ID) != nil || h.Service(s.ID) == nil {
			t.Errorf("after its minute: %+v, and before: %+v", h.Service(early.ID), h.Service(s.ID))
		}
		time.Sleep(30 * time.Second)
		if h.Service(s.ID) != nil || h.Instance(h.instance.ID) != nil {
			t.Errorf("there still are %+v and %+v", h.Service(s.ID), h.Instance(h.instance.ID))
		}
		checkLog(t, h.world)
	})
}

// Whoever reads the log is told what changed, not only that a node said so.
func TestService_ReportsSayWhatChanged(t *testing.T) {
	h := newHost(t, setup{})
	s := h.deploy(t, func(in *muster.DeployServiceInput) { in.Checks = []muster.Check{{Name: "up", Kind: muster.TCPCheck}} })
	report := func(health muster.ServiceHealth, check muster.CheckStatus, pid, restarts int, why string) {
		m := said(s, muster.ServiceRunning, health)
		m.PID, m.Restarts, m.HealthReason = &pid, restarts, why
		m.Checks = []muster.CheckResult{{Name: "up", Status: check}}
		h.tell(t, muster.Running, m)
	}
	report(muster.HealthUnknown, muster.CheckUnknown, 7, 0, "")
	report(muster.HealthOK, muster.CheckOK, 7, 0, "")
	report(muster.HealthBad, muster.CheckCritical, 7, 0, "its check up is CRITICAL")
	report(muster.HealthBad, muster.CheckWarning, 7, 0, "")
	report(muster.HealthBad, muster.CheckWarning, 8, 1, "")
	report(muster.HealthBad, muster.CheckWarning, 9, 1, "")
	page, err := h.Changes(ctx, nil, new(string(s.ID)), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range page.Edges {
		got = append(got, e.Node.Reason)
	}
	want := []string{
		"deployed", "its process runs", "all of its checks are OK", "its check up is CRITICAL", "its check up is WARNING",
		"it was started again", "its process is another one",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the log says (-want +got):\n%s", diff)
	}
}

// prune has the node fall silent until it is out of the registry, and returns a way back.
func (h *host) prune(t *testing.T) (back func()) {
	t.Helper()
	time.Sleep(10 * time.Minute)
	if h.Node("n1") != nil {
		t.Fatal("the node is still there")
	}
	return func() {
		in := nodeInput("n1", 4, 4096)
		in.UID, in.Incarnation = &h.node.UID, h.node.Incarnation+1
		i := h.Instance(h.instance.ID)
		in.Epoch = h.ServerInfo().Epoch
		in.Instances = []muster.InstanceReportInput{{Machine: i.Machine, Epoch: in.Epoch, ID: i.ID, Generation: i.Generation, Status: muster.Running}}
		out, err := h.RegisterNode(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		h.node, h.sequence = out.Node, 0
		if h.Instance(h.instance.ID).Status == muster.Terminated && (len(out.Remove) != 1 || out.Remove[0] != i.Machine) {
			t.Errorf("of a machine that is terminated it is told to remove %v", out.Remove)
		}
	}
}

// A service that is removed while its node is away has a process there: the node is told
// when it returns.
func TestService_IsRemovedWhenItsNodeReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, setup{})
		s := h.deploy(t, nil)
		h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
		back := h.prune(t)
		if s, _, err := h.RemoveService(ctx, s.ID); err != nil || s.Status != muster.ServiceRemoving {
			t.Fatalf("%+v, %v", s, err)
		}
		back()
		told, err := h.Assignments(ctx, h.node.UID, h.node.Incarnation)
		if err != nil || len(told.Instances) != 1 || len(told.Instances[0].Services) != 1 || told.Instances[0].Services[0].Desired != muster.WantTerminated {
			t.Fatalf("it is told %+v, %v", told, err)
		}
		h.tell(t, muster.Running)
		wantService(t, h, s.ID, muster.ServiceRemoved, muster.HealthUnknown)
		checkLog(t, h.world)
	})
}

// One whose instance goes with it does not wait for a node that is gone, whichever came first.
func TestService_GoesWithItsInstanceWhenItsNodeIsGone(t *testing.T) {
	for name, first := range map[string]bool{"removed before": true, "removed after": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, setup{})
				size := muster.Nano
				s, _, err := h.DeployService(ctx, muster.DeployServiceInput{
					Type: &size, NodeID: new("n1"), Name: "web", Command: []string{"httpd"}, Port: 80,
					RegisterWhenStable: []muster.RegistrationSpec{{Cluster: "prod", Protocol: "http"}},
				})
				if err != nil {
					t.Fatal(err)
				}
				h.instance = h.Instance(s.InstanceID)
				h.tell(t, muster.Running)
				h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
				remove := func() {
					if _, _, err := h.RemoveService(ctx, s.ID); err != nil {
						t.Fatal(err)
					}
				}
				if first {
					remove()
					wantService(t, h, s.ID, muster.ServiceRemoving, muster.HealthUnknown)
				}
				back := h.prune(t)
				if !first {
					remove()
				}
				wantService(t, h, s.ID, muster.ServiceRemoved, muster.HealthUnknown)
				wantStatus(t, h.world, s.InstanceID, muster.Terminated)
				back()
				wantStatus(t, h.world, s.InstanceID, muster.Terminated)
				checkLog(t, h.world)
			})
		})
	}
}

// An instance that has vanished with the service that it was launched for, while that was
// being removed, has ended for good.
func TestService_VanishesWithItsInstance(t *testing.T) {
	h := newHost(t, setup{})
	size := muster.Nano
	s, _, err := h.DeployService(ctx, muster.DeployServiceInput{
		Type: &size, Name: "web", Command: []string{"httpd"}, Port: 80, RegisterWhenStable: []muster.RegistrationSpec{{Cluster: "prod", Protocol: "http"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.instance = h.Instance(s.InstanceID)
	h.tell(t, muster.Running)
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	if _, _, err := h.RemoveService(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, h.world, s.InstanceID, muster.Running)
	h.report(t, h.node, h.sequence+1, nil)
	wantService(t, h, s.ID, muster.ServiceRemoved, muster.HealthUnknown)
	h.report(t, h.node, h.sequence+2, nil)
	wantStatus(t, h.world, s.InstanceID, muster.Terminated)
	checkLog(t, h.world)
}

// One report may say that both are gone, and the agent has no other to send.
func TestService_GoesInOneReportWithItsInstance(t *testing.T) {
	h := newHost(t, setup{})
	size := muster.Nano
	s, _, err := h.DeployService(ctx, muster.DeployServiceInput{Type: &size, Name: "web", Command: []string{"httpd"}})
	if err != nil {
		t.Fatal(err)
	}
	h.instance = h.Instance(s.InstanceID)
	h.tell(t, muster.Running)
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	if _, _, err := h.RemoveService(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, h.world, s.InstanceID, muster.Terminating)
	h.report(t, h.node, h.sequence+1, nil)
	wantService(t, h, s.ID, muster.ServiceRemoved, muster.HealthUnknown)
	wantStatus(t, h.world, s.InstanceID, muster.Terminated)
	checkLog(t, h.world)
}

// What a node has of a service may be in any machine of its instance: it is gone when it is in none.
func TestService_IsGoneWhenNoMachineHasIt(t *testing.T) {
	h := newHost(t, setup{})
	s := h.deploy(t, nil)
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	if _, _, err := h.RestartInstance(ctx, h.instance.ID); err != nil {
		t.Fatal(err)
	}
	h.tell(t, muster.Failed)
	if _, _, err := h.RemoveService(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	i, info := h.Instance(h.instance.ID), h.ServerInfo()
	before := muster.InstanceReportInput{Machine: strings.TrimSuffix(i.Machine, "-2") + "-1", Epoch: info.Epoch, ID: i.ID, Generation: 1, Status: muster.Failed}
	now := muster.InstanceReportInput{Machine: i.Machine, Epoch: info.Epoch, ID: i.ID, Generation: 2, Status: muster.Failed}
	report := func(machines ...muster.InstanceReportInput) {
		h.sequence++
		if _, _, err := h.ReportInstances(ctx, muster.ReportInstancesInput{
			UID: h.node.UID, Incarnation: 1, Sequence: h.sequence, Epoch: info.Epoch, AppliedRevision: h.DesiredRevision(h.node), Instances: machines,
		}); err != nil {
			t.Fatal(err)
		}
	}
	now.Services = []muster.ServiceReportInput{said(s, muster.ServiceRemoving, muster.HealthUnknown)}
	report(before, now)
	wantService(t, h, s.ID, muster.ServiceRemoving, muster.HealthUnknown)
	report(before)
	wantService(t, h, s.ID, muster.ServiceRemoved, muster.HealthUnknown)
	checkLog(t, h.world)
}
