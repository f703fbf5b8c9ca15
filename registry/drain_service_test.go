package registry_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
)

// drains is what the node is told of how much longer things go on: the instance, and its services.
func (h *host) drains(t *testing.T) (instance time.Duration, services []time.Duration) {
	t.Helper()
	a, err := h.Assignments(ctx, h.node.UID, 1)
	if err != nil || len(a.Instances) != 1 {
		t.Fatalf("assigned %+v, %v", a, err)
	}
	for _, s := range a.Instances[0].Services {
		services = append(services, s.Drain)
	}
	return a.Instances[0].Drain, services
}

// deployTwo deploys two services into the instance that are in the feed, and one that nobody looks up.
func (h *host) deployTwo(t *testing.T) (quick, slow *muster.Service) {
	t.Helper()
	named := func(name string, port int, drain time.Duration) func(*muster.DeployServiceInput) {
		return func(in *muster.DeployServiceInput) { in.Name, in.Port, in.DrainFor = name, port, &drain }
	}
	quick, slow = registered(t, h, named("quick", 80, 2*time.Second)), registered(t, h, named("slow", 81, 7*time.Second))
	alone := h.deploy(t, named("alone", 82, time.Minute))
	h.tell(t, muster.Running, said(quick, muster.ServiceRunning, muster.HealthOK), said(slow, muster.ServiceRunning, muster.HealthOK),
		said(alone, muster.ServiceRunning, muster.HealthOK))
	wantEntries(t, h.world, "quick", 1)
	wantEntries(t, h.world, "slow", 1)
	return quick, slow
}

// orders are those that end what runs of an instance.
func orders() map[string]func(h *host) error {
	now := time.Duration(0)
	return map[string]func(h *host) error{
		"stop":      func(h *host) error { _, _, err := h.StopInstance(ctx, h.instance.ID); return err },
		"restart":   func(h *host) error { _, _, err := h.RestartInstance(ctx, h.instance.ID); return err },
		"terminate": func(h *host) error { _, _, err := h.TerminateInstance(ctx, h.instance.ID); return err },
		"drain of the node": func(h *host) error {
			_, _, err := h.DrainNode(ctx, muster.DrainNodeInput{ID: "n1", Deadline: &now})
			time.Sleep(time.Second) // of the sweep
			return err
		},
	}
}

func TestInstance_DrainsAsLongAsTheLastOfItsServices(t *testing.T) {
	reasons := map[string]string{
		"stop": "its instance is STOPPING", "restart": "its instance is PROVISIONING",
		"terminate": "its instance is TERMINATING", "drain of the node": "its instance is STOPPING",
	}
	for name, order := range orders() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, setup{dir: dir})
				quick, _ := h.deployTwo(t)
				if err := order(h); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				began := time.Now()
				i := h.Instance(h.instance.ID)
				if i.DrainUntil == nil || i.DrainUntil.Sub(began) != 7*time.Second {
					t.Fatalf("ordered at %s, it drains until %v", began, i.DrainUntil)
				}
				wantEntries(t, h.world, "quick", 0) // 2 s later
				wantEntries(t, h.world, "slow", 0)
				_, changes := replay(t, h.world)
				last := changes[slices.IndexFunc(changes, func(c *muster.Change) bool { return c.Kind == muster.KindRegistration && c.Deleted })]
				if last.Reason != string(quick.ID)+": "+reasons[name] || last.At.Sub(began) > time.Second/2 {
					t.Errorf("%s after the order an entry was withdrawn because %q", last.At.Sub(began), last.Reason)
				}
				if left, services := h.drains(t); left != 3*time.Second || slices.Max(services) != 0 {
					t.Errorf("after 4 s it is told to drain for %s more, and its services for %v", left, services)
				}
				if _, _, err := h.TerminateInstance(ctx, h.instance.ID); err != nil {
					t.Fatal(err)
				}
				h.stop()
				h.world = open(t, setup{dir: dir})
				if left, _ := h.drains(t); left != 3*time.Second {
					t.Errorf("terminated, after a restart of the server it is told to drain for %s more", left)
				}
				time.Sleep(3 * time.Second)
				if left, _ := h.drains(t); left != 0 {
					t.Errorf("drained, it is told to drain for %s more", left)
				}
				checkLog(t, h.world)
			})
		})
	}
}

func TestInstance_EndsAtOnceWhatNobodyLooksUp(t *testing.T) {
	for name, order := range orders() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, setup{})
				alone := h.deploy(t, nil)
				down := registered(t, h, func(in *muster.DeployServiceInput) { in.Name, in.Port = "down", 81 })
				never := time.Duration(0)
				hasty := registered(t, h, func(in *muster.DeployServiceInput) { in.Name, in.Port, in.DrainFor = "hasty", 82, &never })
				h.tell(t, muster.Running, said(alone, muster.ServiceRunning, muster.HealthOK), said(down, muster.ServiceFailed, muster.HealthBad),
					said(hasty, muster.ServiceRunning, muster.HealthOK))
				if err := order(h); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				i := h.Instance(h.instance.ID)
				if left, _ := h.drains(t); left != 0 || i.DrainUntil != nil || i.Status == muster.Running {
					t.Errorf("it is %s, drains until %v, and its node is told to drain it for %s", i.Status, i.DrainUntil, left)
				}
			})
		})
	}
}

func TestService_IsDrainedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, setup{})
		quick, slow := h.deployTwo(t)
		left := func(want ...time.Duration) {
			t.Helper()
			synctest.Wait()
			_, services := h.drains(t)
			if !slices.Equal(services, want) {
				t.Errorf("they are told to drain for %v more, want %v", services, want)
			}
		}
		do := func(_ *muster.Service, _ int64, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		do(h.StopService(ctx, slow.ID))
		left(0, 7*time.Second, 0)
		time.Sleep(time.Second)
		do(h.RestartService(ctx, slow.ID))
		left(0, 6*time.Second, 0)
		if _, _, err := h.StopInstance(ctx, h.instance.ID); err != nil {
			t.Fatal(err)
		}
		if i, _ := h.drains(t); i != 6*time.Second {
			t.Errorf("with a service that drains already its instance drains for %s", i)
		}
		do(h.RemoveService(ctx, slow.ID))
		do(h.RemoveService(ctx, quick.ID)) // which goes on with its instance
		left(2*time.Second, 6*time.Second, 0)
	})
}

// TestInstance_TellsItsFormerStartFromItsPresentOne has both machines of an instance in a report, while one drains.
func TestInstance_TellsItsFormerStartFromItsPresentOne(t *testing.T) {
	h := newHost(t, setup{})
	s := registered(t, h, nil)
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	former := h.Instance(h.instance.ID)
	if _, _, err := h.RestartInstance(ctx, h.instance.ID); err != nil {
		t.Fatal(err)
	}
	present := h.Instance(h.instance.ID)
	both := func(services ...muster.ServiceReportInput) {
		t.Helper()
		info := h.ServerInfo()
		h.sequence++
		_, _, err := h.ReportInstances(ctx, muster.ReportInstancesInput{
			UID: h.node.UID, Incarnation: h.node.Incarnation, Sequence: h.sequence, Epoch: info.Epoch, AppliedRevision: h.DesiredRevision(h.node),
			Instances: []muster.InstanceReportInput{
				{Machine: former.Machine, Epoch: info.Epoch, ID: former.ID, Generation: former.Generation, Status: muster.Running, Services: services},
				{Machine: present.Machine, Epoch: info.Epoch, ID: present.ID, Generation: present.Generation, Status: muster.Provisioning, Reason: "draining"},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	both(said(s, muster.ServiceRunning, muster.HealthOK))
	wantService(t, h, s.ID, muster.ServicePending, muster.HealthBad)
	if i := wantStatus(t, h.world, present.ID, muster.Provisioning); i.DrainUntil == nil || i.StatusReason != "draining" {
		t.Errorf("while it drains it is %+v", i)
	}
	if _, _, err := h.RemoveService(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	both(said(s, muster.ServiceRemoving, muster.HealthUnknown))
	wantService(t, h, s.ID, muster.ServiceRemoving, muster.HealthUnknown)
	both()
	wantService(t, h, s.ID, muster.ServiceRemoved, muster.HealthUnknown)
	h.tell(t, muster.Running)
	if i := wantStatus(t, h.world, present.ID, muster.Running); i.DrainUntil != nil {
		t.Errorf("started anew, it drains until %v", i.DrainUntil)
	}
}
