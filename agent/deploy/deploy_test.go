package deploy_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/artifact"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const machine = "c1-i-1-1"

// node is a host with a machine that runs, and a manager at work on it.
type node struct {
	t       *testing.T
	host    *drivertest.Host
	driver  *drivertest.Fake
	manager *deploy.Manager
	ports   *ports
	listed  *atomic.Int64
	fetch   artifact.Options
	stop    func()
}

// counting counts how often processes are listed.
type counting struct {
	*drivertest.Fake
	listed *atomic.Int64
}

func (c counting) ListProcesses(ctx context.Context) ([]driver.ProcessStatus, error) {
	c.listed.Add(1)
	return c.Fake.ListProcesses(ctx)
}

// ports remembers what was published, the last at the end.
type ports struct {
	mu   sync.Mutex
	sets [][]deploy.Port
}

func (p *ports) Publish(_ context.Context, set []deploy.Port) (map[muster.ServiceID]error, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sets = append(p.sets, set)
	return nil, nil
}

func (p *ports) published() [][]deploy.Port {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sets)
}

func (p *ports) last() []deploy.Port {
	sets := p.published()
	return sets[len(sets)-1]
}

func newNode(t *testing.T) *node {
	n := &node{t: t, host: drivertest.NewHost(), ports: &ports{}, listed: new(atomic.Int64)}
	for _, program := range []string{"httpd", "/opt/muster/svc-1/app"} {
		n.host.Program(program, func(p *drivertest.Process) int {
			select {
			case <-p.Term:
			case <-p.Killed:
			}
			return 0
		})
	}
	n.driver = drivertest.NewFake(n.host)
	_, err := n.driver.Launch(t.Context(), driver.Spec{
		Machine: machine, Disk: "c1-i-1", Instance: "i-1", Generation: 1, Hostname: "a", Image: "minimal", CPUPercent: 25, MemoryMB: 128,
	})
	if err != nil {
		t.Fatal(err)
	}
	n.start()
	return n
}

// start begins a manager, as a new agent does.
func (n *node) start() {
	n.manager = deploy.New(deploy.Options{Driver: counting{n.driver, n.listed}, Ports: n.ports, Fetch: artifact.New(n.fetch)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = n.manager.Run(ctx) }()
	n.stop = func() { cancel(); <-done }
}

func service() *muster.ServiceAssignment {
	return &muster.ServiceAssignment{
		ID: "svc-1", Generation: 1, Name: "web", Desired: muster.WantRunning, Command: []string{"httpd"}, Port: 80,
		Restart: muster.RestartPolicy{}.WithDefaults(),
	}
}

func (n *node) want(running bool, services ...*muster.ServiceAssignment) {
	n.manager.Want([]deploy.Machine{{Name: machine, Addr: "10.213.0.2", Running: running, Services: services, Told: time.Now()}})
}

// said is what the manager says of the service; the zero report when it says nothing.
func (n *node) said() muster.ServiceReportInput {
	reports := n.manager.Reports(machine)
	if len(reports) == 0 {
		return muster.ServiceReportInput{}
	}
	return reports[0]
}

// settled waits a while, in virtual time, and returns what is said then.
func (n *node) settled(after time.Duration) muster.ServiceReportInput {
	n.t.Helper()
	time.Sleep(after)
	synctest.Wait()
	return n.said()
}

func (n *node) wantSaid(after time.Duration, status muster.ServiceStatus, health muster.ServiceHealth) muster.ServiceReportInput {
	n.t.Helper()
	r := n.settled(after)
	if r.Status != status || r.Health != health {
		n.t.Fatalf("it is said to be %s and %s (%s, %s), want %s and %s", r.Status, r.Health, r.Reason, r.HealthReason, status, health)
	}
	return r
}

// until waits, in real time, until what is said of the service in a machine is as wanted.
func (n *node) until(machine string, ok func(muster.ServiceReportInput) bool) (r muster.ServiceReportInput) {
	n.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, r = range n.manager.Reports(machine) {
			if ok(r) {
				return r
			}
		}
	}
	n.t.Fatalf("in %s it is %+v", machine, r)
	return r
}

func TestManager_KeepsStopsAndRemoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		s := service()
		s.Publish = &muster.Published{Port: 30000, Protocol: muster.TCP}
		n.want(true, s)
		r := n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		if r.PID == nil || r.ID != "svc-1" || r.Generation != 1 {
			t.Errorf("it is said: %+v", r)
		}
		if last := n.ports.last(); len(last) != 1 || last[0].Port != 30000 || last[0].To != 80 || last[0].Addr != "10.213.0.2" {
			t.Errorf("published: %+v", last)
		}
		pid := *r.PID

		n.stop() // the agent restarts
		before := len(n.ports.published())
		n.start()
		n.want(true, s)
		if r = n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK); *r.PID != pid {
			t.Errorf("a new agent has it at %d, it was at %d", *r.PID, pid)
		}
		for _, set := range n.ports.published()[before:] {
			if len(set) == 0 {
				t.Error("a new agent took the port back for a moment")
			}
		}

		stopped := service()
		stopped.Desired = muster.WantStopped
		n.want(true, stopped)
		n.wantSaid(time.Second, muster.ServiceStopped, muster.HealthUnknown)
		gone := service()
		gone.Desired = muster.WantTerminated
		n.want(true, gone)
		if r := n.settled(3 * time.Second); r.ID != "" || len(n.host.Processes()) != 0 {
			t.Errorf("removed, it is said: %+v, and %v are there", r, n.host.Processes())
		}
	})
}

func TestManager_StartsAgainWhatDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		n.want(true, service())
		first := n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		if err := n.host.ExitProcess(driver.ProcessRef{Machine: machine, Name: "svc-1"}, 3); err != nil {
			t.Fatal(err)
		}
		n.wantSaid(time.Second/10, muster.ServiceRestarting, muster.HealthBad)
		r := n.wantSaid(5*time.Second, muster.ServiceRunning, muster.HealthOK)
		if r.Restarts != 1 || *r.PID == *first.PID {
			t.Errorf("it is said: %+v", r)
		}
	})
}

func TestManager_FollowsItsMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		n.want(true, service())
		n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		n.want(false, service())
		n.wantSaid(time.Second, muster.ServicePending, muster.HealthBad)
		n.want(true, service())
		n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		ended := service()
		ended.Ended = true
		n.stop()
		n.start()
		n.want(true, ended)
		if r := n.settled(time.Second); r.ID != "" {
			t.Errorf("of what has ended, a new agent says %+v", r)
		}
	})
}

func TestManager_ChecksTellNothingBeforeTheyRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		s := service()
		s.Checks = []muster.Check{muster.Check{Name: "beat", Kind: muster.TTLCheck, Interval: 10 * time.Second}.WithDefaults()}
		n.want(true, s)
		n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthUnknown)
		if err := n.manager.ReportCheck(muster.CheckRequest{Service: "svc-1", Check: "beat", Status: muster.CheckOK, Output: "fine"}); err != nil {
			t.Fatal(err)
		}
		r := n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		if len(r.Checks) != 1 || r.Checks[0].Output != "fine" {
			t.Errorf("its checks: %+v", r.Checks)
		}
		n.stop()
		n.start()
		n.want(true, s)
		if r := n.settled(time.Second); r.ID != "" {
			t.Errorf("a new agent says %+v before the check has run", r)
		}
		n.wantSaid(12*time.Second, muster.ServiceRunning, muster.HealthBad) // nothing was reported
	})
}

func TestManager_DeploysFiles(t *testing.T) {
	files := http.NewServeMux()
	files.HandleFunc("/app", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("#!/bin/sh\n")) })
	server := httptest.NewServer(files)
	defer server.Close()
	n := newNode(t)
	defer func() { n.stop(); n.host.Close() }()
	until := func(status muster.ServiceStatus) muster.ServiceReportInput {
		t.Helper()
		return n.until(machine, func(r muster.ServiceReportInput) bool { return r.Status == status })
	}
	s := service()
	s.Command, s.DeployURL = nil, server.URL+"/app"
	n.want(true, s)
	until(muster.ServiceRunning)
	next := *s
	next.Generation, next.SHA256 = 2, "00"+s.SHA256
	n.want(true, &next)
	if r := until(muster.ServiceFailed); r.Reason == "" || r.Generation != 2 {
		t.Errorf("with a wrong checksum it is %+v", r)
	}
	if left := n.running(); left != 0 {
		t.Errorf("FAILED, it has %d processes that run", left)
	}
	missing := *s
	missing.Generation, missing.DeployURL = 3, server.URL+"/nothing"
	n.want(true, &missing)
	if r := until(muster.ServiceFailed); r.Generation == 3 && r.Reason == "" {
		t.Errorf("what is not there gives %+v", r)
	}
}
