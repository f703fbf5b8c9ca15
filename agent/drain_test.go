package agent_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

// published remembers how many ports were published, each time.
type published struct {
	mu     sync.Mutex
	counts []int
}

func (p *published) Publish(_ context.Context, ports []deploy.Port) (map[muster.ServiceID]error, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts = append(p.counts, len(ports))
	return nil, nil
}

func (p *published) now() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.counts)
}

// serving launches an instance with a service that runs in it.
func (w *world) serving(a *running) muster.InstanceID {
	w.t.Helper()
	w.host.Program("httpd", func(p *drivertest.Process) int {
		select {
		case <-p.Term:
		case <-p.Killed:
		}
		return 0
	})
	id := w.cloud.launch()
	w.cloud.with(func() {
		w.cloud.instances[id].Services = []*muster.ServiceAssignment{{
			ID: "svc-1", Generation: 1, Name: "web", Desired: muster.WantRunning, Command: []string{"httpd"}, Port: 80,
			Publish: &muster.Published{Port: 30000, Protocol: muster.TCP}, Restart: muster.RestartPolicy{}.WithDefaults(),
		}}
	})
	a.nudgeNow(w, id)
	pass(time.Second)
	w.want(id, muster.Running)
	if got := w.services(); !slices.Equal(got, []string{"k3f9-i-1-1"}) {
		w.t.Fatalf("services run in %v", got)
	}
	return id
}

// services are the machines in which a process of a service runs.
func (w *world) services() (machines []string) {
	w.t.Helper()
	all, err := drivertest.NewFake(w.host).ListProcesses(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range all {
		if p.State == driver.Running {
			machines = append(machines, p.Spec.Machine)
		}
	}
	return machines
}

// TestAgent_DrainsBeforeItEndsAMachine counts from the order on, whatever restarts and whatever is ordered meanwhile.
func TestAgent_DrainsBeforeItEndsAMachine(t *testing.T) {
	nothing := func(*cloud, muster.InstanceID) bool { return true }
	for name, c := range map[string]struct {
		order, then func(*cloud, muster.InstanceID) bool
		services    []string // the machines that they run in afterwards
		machines    []string
	}{
		"stopped":                 {(*cloud).stop, nothing, nil, []string{"k3f9-i-1-1"}},
		"started anew":            {(*cloud).restart, nothing, []string{"k3f9-i-1-2"}, []string{"k3f9-i-1-2"}},
		"terminated":              {(*cloud).terminate, nothing, nil, []string{}},
		"stopped, terminated":     {(*cloud).stop, (*cloud).terminate, nil, []string{}},
		"started anew, stopped":   {(*cloud).restart, (*cloud).stop, nil, []string{"k3f9-i-1-1"}},
		"stopped, an agent later": {(*cloud).stop, nil, nil, []string{"k3f9-i-1-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				ports := &published{}
				w.deploy.Ports = ports
				a := w.start()
				id := w.serving(a)
				before := len(ports.now())
				w.cloud.drain(id, 5*time.Second)
				if !c.order(w.cloud, id) {
					t.Fatal("the order was refused")
				}
				a.nudgeNow(w, id)
				pass(2 * time.Second)
				if c.then == nil {
					a.stop()
					a = w.start()
				} else if !c.then(w.cloud, id) {
					t.Fatal("the second order was refused")
				}
				a.nudgeNow(w, id)
				pass(3*time.Second - time.Millisecond)
				if got := w.services(); !slices.Equal(got, []string{"k3f9-i-1-1"}) {
					t.Errorf("while it drains services run in %v", got)
				}
				if counts := ports.now(); slices.Contains(counts[before:], 0) {
					t.Errorf("while it drains, the ports that are published are %v", counts)
				}
				pass(2 * time.Second)
				if got := w.services(); !slices.Equal(got, c.services) {
					t.Errorf("drained, services run in %v, want %v", got, c.services)
				}
				if got := w.host.Machines(); !slices.Equal(got, c.machines) {
					t.Errorf("drained, the machines are %v, want %v", got, c.machines)
				}
				if m := w.machine("k3f9-i-1-1"); m != nil && m.State == driver.Running {
					t.Errorf("drained, it is %+v", m)
				}
			})
		})
	}
}

// TestAgent_ReportsWhatDrains is for who looks why an instance that was restarted is not there yet.
func TestAgent_ReportsWhatDrains(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		id := w.serving(a)
		w.cloud.drain(id, 5*time.Second)
		w.cloud.restart(id)
		a.nudgeNow(w, id)
		newest, _ := w.cloud.report()
		if all := newest.Instances; len(all) != 2 || all[0].Status != muster.Running || len(all[0].Services) != 1 ||
			all[1].Status != muster.Provisioning || all[1].Reason != "what ran before is draining" || len(all[1].Services) != 0 {
			t.Errorf("while it drains the report is %+v", all)
		}
	})
}
