package registry_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

// host is a world with one node and a running instance on it.
type host struct {
	*world
	node     *muster.Node
	instance *muster.Instance
	sequence int64
}

func newHost(t *testing.T, s setup) *host {
	t.Helper()
	w := open(t, s)
	n := w.join(t, "n1", 4, 4096)
	h := &host{world: w, node: n, instance: w.launch(t, launch(muster.Nano))}
	h.tell(t, muster.Running)
	return h
}

// tell reports the instance with its services, of which those that are left out are not there.
func (h *host) tell(t *testing.T, status muster.InstanceStatus, services ...muster.ServiceReportInput) {
	t.Helper()
	info := h.ServerInfo()
	i := h.Instance(h.instance.ID)
	h.sequence++
	_, _, err := h.ReportInstances(ctx, muster.ReportInstancesInput{
		UID: h.node.UID, Incarnation: h.node.Incarnation, Sequence: h.sequence, Epoch: info.Epoch, AppliedRevision: h.DesiredRevision(h.node),
		Instances: []muster.InstanceReportInput{{
			Machine: i.Machine, Epoch: info.Epoch, ID: i.ID, Generation: i.Generation, Status: status, Services: services,
		}},
	})
	if err != nil {
		t.Fatalf("report: %v", err)
	}
}

func (h *host) deploy(t *testing.T, change func(*muster.DeployServiceInput)) *muster.Service {
	t.Helper()
	in := web(h.instance.ID)
	if change != nil {
		change(&in)
	}
	s, _, err := h.DeployService(ctx, in)
	if err != nil {
		t.Fatalf("deploy: %v", err)
	}
	return s
}

func web(id muster.InstanceID) muster.DeployServiceInput {
	return muster.DeployServiceInput{InstanceID: &id, Name: "web", Command: []string{"httpd"}, Port: 80}
}

// said is a report of a service's present generation.
func said(s *muster.Service, status muster.ServiceStatus, health muster.ServiceHealth) muster.ServiceReportInput {
	pid := 4711
	m := muster.ServiceReportInput{ID: s.ID, Generation: s.Generation, Status: status, Health: health}
	if status == muster.ServiceRunning {
		m.PID = &pid
	}
	return m
}

func wantService(t *testing.T, h *host, id muster.ServiceID, status muster.ServiceStatus, health muster.ServiceHealth) *muster.Service {
	t.Helper()
	s := h.Service(id)
	if s == nil || s.Status != status || h.ServiceHealth(s) != health {
		t.Fatalf("service %s is %+v with health %v, want %s and %s", id, s, h.ServiceHealth(s), status, health)
	}
	return s
}

func TestService_Lives(t *testing.T) {
	h := newHost(t, setup{})
	s := h.deploy(t, nil)
	wantService(t, h, s.ID, muster.ServiceDeploying, muster.HealthUnknown)
	assigned, err := h.Assignments(ctx, h.node.UID, 1)
	if err != nil || len(assigned.Instances) != 1 || len(assigned.Instances[0].Services) != 1 || assigned.DesiredRevision != s.Revision {
		t.Fatalf("assigned: %+v, %v", assigned, err)
	}
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	s = wantService(t, h, s.ID, muster.ServiceRunning, muster.HealthOK)
	if s.PID == nil || s.StartedAt == nil {
		t.Errorf("it has no pid or start: %+v", s)
	}
	if _, _, err := h.StopService(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	s = wantService(t, h, s.ID, muster.ServiceStopping, muster.HealthUnknown)
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	wantService(t, h, s.ID, muster.ServiceStopping, muster.HealthUnknown)
	h.tell(t, muster.Running, said(s, muster.ServiceStopped, muster.HealthUnknown))
	wantService(t, h, s.ID, muster.ServiceStopped, muster.HealthUnknown)
	s, _, err = h.StartService(ctx, s.ID)
	if err != nil || s.Generation != 2 {
		t.Fatalf("started: %+v, %v", s, err)
	}
	h.tell(t, muster.Running, muster.ServiceReportInput{ID: s.ID, Generation: 1, Status: muster.ServiceStopped, Health: muster.HealthUnknown})
	wantService(t, h, s.ID, muster.ServiceDeploying, muster.HealthUnknown) // a report of the past
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	if _, _, err := h.RemoveService(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	wantService(t, h, s.ID, muster.ServiceRemoving, muster.HealthUnknown)
	h.tell(t, muster.Running)
	wantService(t, h, s.ID, muster.ServiceRemoved, muster.HealthUnknown)
	_, _, err = h.StartService(ctx, s.ID)
	wantCode(t, err, muster.NotFound)
	checkLog(t, h.world)
}

func TestService_FollowsItsInstance(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, setup{dir: dir})
	s := h.deploy(t, nil)
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	if _, _, err := h.StopInstance(ctx, h.instance.ID); err != nil {
		t.Fatal(err)
	}
	wantService(t, h, s.ID, muster.ServicePending, muster.HealthBad)
	h.tell(t, muster.Stopped)
	_, _, err := h.DeployService(ctx, muster.DeployServiceInput{InstanceID: &h.instance.ID, Name: "other", Command: []string{"x"}})
	wantCode(t, err, muster.Conflict)
	if !strings.Contains(err.Error(), "muster instance start") {
		t.Errorf("the message does not say what to do: %v", err)
	}
	if _, _, err := h.StartInstance(ctx, h.instance.ID); err != nil {
		t.Fatal(err)
	}
	h.tell(t, muster.Running)
	wantService(t, h, s.ID, muster.ServiceDeploying, muster.HealthUnknown)
	before := h.Service(s.ID)
	h.stop()
	h.world = open(t, setup{dir: dir})
	if after := h.Service(s.ID); after == nil || after.Revision != before.Revision || after.Status != before.Status || after.Env == nil {
		t.Fatalf("after a restart it is %+v, want %+v", after, before)
	}
	if got, want := h.DesiredRevision(h.node), max(h.Instance(h.instance.ID).DesiredRevision, before.DesiredRevision); got != want {
		t.Errorf("the node's desired revision is %d, want %d", got, want)
	}
	if _, _, err := h.TerminateInstance(ctx, h.instance.ID); err != nil {
		t.Fatal(err)
	}
	wantService(t, h, s.ID, muster.ServicePending, muster.HealthBad)
	h.report(t, h.node, 100, nil)
	wantService(t, h, s.ID, muster.ServiceRemoved, muster.HealthUnknown)
	checkLog(t, h.world)
}

func TestService_LaunchesAnInstanceAndTakesItAlong(t *testing.T) {
	h := newHost(t, setup{})
	size := muster.Nano
	in := muster.DeployServiceInput{Type: &size, Name: "web", Command: []string{"httpd"}, Port: 80, RequestID: "r1", Publish: &muster.Published{Protocol: muster.TCP}}
	s, _, err := h.DeployService(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := h.DeployService(ctx, in)
	if err != nil || again.ID != s.ID {
		t.Fatalf("the same request made %v, %v", again, err)
	}
	i := h.Instance(s.InstanceID)
	if i == nil || i.Name != "web" || s.Status != muster.ServicePending || s.Publish.Port != muster.DefaultPortFrom || !s.OwnsInstance {
		t.Fatalf("it is in %+v: %+v", i, s)
	}
	if _, _, err := h.RemoveService(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, h.world, i.ID, muster.Terminating)
}

func TestService_IsDrainedBeforeItsInstanceGoes(t *testing.T) {
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
	h.tell(t, muster.Running, said(s, muster.ServiceStopping, muster.HealthUnknown))
	wantStatus(t, h.world, s.InstanceID, muster.Running)
	h.tell(t, muster.Running)
	wantStatus(t, h.world, s.InstanceID, muster.Terminating)
	if s = h.Service(s.ID); s.Status != muster.ServiceRemoved {
		t.Errorf("the service is %s", s.Status)
	}
	checkLog(t, h.world)
}

func TestService_Ports(t *testing.T) {
	h := newHost(t, setup{})
	publish := func(port int) func(*muster.DeployServiceInput) {
		return func(in *muster.DeployServiceInput) {
			in.Name, in.Port, in.Publish = "p"+time.Now().Format("150405.000000000")[7:], 0, nil
			in.Port = 1000 + len(h.ServicesOf(h.instance))
			in.Publish = &muster.Published{Port: port, Protocol: muster.TCP}
		}
	}
	first, second := h.deploy(t, publish(0)), h.deploy(t, publish(0))
	if first.Publish.Port == second.Publish.Port {
		t.Errorf("both got %d", first.Publish.Port)
	}
	h.deploy(t, publish(8080))
	in := web(h.instance.ID)
	publish(8080)(&in)
	_, _, err := h.DeployService(ctx, in)
	wantCode(t, err, muster.Conflict)
	in.Publish.Protocol = muster.UDP
	if _, _, err := h.DeployService(ctx, in); err != nil {
		t.Errorf("UDP is another port: %v", err)
	}
	size := muster.Nano
	_, _, err = h.DeployService(ctx, muster.DeployServiceInput{Type: &size, Name: "elsewhere", Command: []string{"x"}, Port: 80, Publish: &muster.Published{Port: 8080, Protocol: muster.TCP}})
	wantCode(t, err, muster.NoCapacity)
	other := h.join(t, "n2", 4, 4096)
	s, _, err := h.DeployService(ctx, muster.DeployServiceInput{Type: &size, Name: "elsewhere", Command: []string{"x"}, Port: 80, Publish: &muster.Published{Port: 8080, Protocol: muster.TCP}})
	if err != nil || h.Instance(s.InstanceID).NodeUID != other.UID {
		t.Errorf("it went to %v, %v", s, err)
	}
}

func TestService_WaitsWithItsInstance(t *testing.T) {
	w := open(t, setup{})
	size := muster.Nano
	s, _, err := w.DeployService(ctx, muster.DeployServiceInput{
		Type: &size, Queue: true, Name: "web", Command: []string{"x"}, Port: 80, Publish: &muster.Published{Protocol: muster.TCP},
	})
	if err != nil || s.Status != muster.ServicePending || s.Publish.Port != 0 {
		t.Fatalf("it is %+v, %v", s, err)
	}
	w.join(t, "n1", 4, 4096)
	if s = w.Service(s.ID); s.Publish.Port != muster.DefaultPortFrom || w.Instance(s.InstanceID).Status != muster.Provisioning {
		t.Errorf("placed, it is %+v", s)
	}
	checkLog(t, w)
}

func TestService_HealthChangesOnce(t *testing.T) {
	h := newHost(t, setup{})
	s := h.deploy(t, func(in *muster.DeployServiceInput) {
		in.Checks = []muster.Check{{Name: "up", Kind: muster.TCPCheck}}
	})
	unknown := said(s, muster.ServiceRunning, muster.HealthUnknown)
	unknown.Checks = []muster.CheckResult{{Name: "up", Status: muster.CheckUnknown}}
	good := said(s, muster.ServiceRunning, muster.HealthOK)
	good.Checks = []muster.CheckResult{{Name: "up", Status: muster.CheckOK, Output: "a"}}
	h.tell(t, muster.Running, unknown)
	wantService(t, h, s.ID, muster.ServiceRunning, muster.HealthUnknown)
	h.tell(t, muster.Running, good)
	wantService(t, h, s.ID, muster.ServiceRunning, muster.HealthOK)
	since := h.ServerInfo().Cursor
	revision := h.ServerInfo().Revision
	for _, output := range []string{"b", "c", "d"} {
		good.Checks = []muster.CheckResult{{Name: "up", Status: muster.CheckOK, Output: output}}
		h.tell(t, muster.Running, good)
	}
	if now := h.ServerInfo().Revision; now != revision {
		t.Errorf("outputs alone made %d changes", now-revision)
	}
	if got := h.CheckResults(h.Service(s.ID)); len(got) != 1 || got[0].Output != "d" || got[0].Since == nil {
		t.Errorf("the results are %+v", got)
	}
	// The process dies, is started again, and its check passes: one change of health each way.
	dead := said(s, muster.ServiceRestarting, muster.HealthBad)
	dead.Restarts = 1
	h.tell(t, muster.Running, dead)
	back := said(s, muster.ServiceRunning, muster.HealthBad)
	back.Restarts = 1
	h.tell(t, muster.Running, back)
	good.Restarts = 1
	h.tell(t, muster.Running, good)
	follow, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	events, err := h.WatchHealth(follow, &muster.HealthFilter{ServiceID: &s.ID}, watch.Request{Since: &since})
	if err != nil {
		t.Fatal(err)
	}
	var healths []muster.ServiceHealth
	for e := range events {
		if e.Type == muster.EventSynced {
			break
		}
		healths = append(healths, e.Service.Health)
	}
	if len(healths) != 2 || healths[0] != muster.HealthBad || healths[1] != muster.HealthOK {
		t.Errorf("the changes of health were %v", healths)
	}
}

func TestService_Refuses(t *testing.T) {
	h := newHost(t, setup{})
	h.deploy(t, nil)
	for name, c := range map[string]struct {
		change func(*muster.DeployServiceInput)
		code   muster.Code
		field  string
	}{
		"a name of 300 characters": {func(in *muster.DeployServiceInput) { in.Name = strings.Repeat("x", 300) }, muster.Invalid, "name"},
		"the same name":            {func(in *muster.DeployServiceInput) { in.Port = 81 }, muster.AlreadyExists, ""},
		"the same port":            {func(in *muster.DeployServiceInput) { in.Name = "b" }, muster.Conflict, "port"},
		"no instance like it":      {func(in *muster.DeployServiceInput) { id := muster.InstanceID("i-99"); in.InstanceID = &id }, muster.NotFound, ""},
		"nothing to run":           {func(in *muster.DeployServiceInput) { in.Command = nil }, muster.Invalid, "command"},
		"env with a newline":       {func(in *muster.DeployServiceInput) { in.Env = muster.Map{"A\nB": "x"} }, muster.Invalid, "env"},
		"env with a NUL":           {func(in *muster.DeployServiceInput) { in.Env = muster.Map{"A": "x\x00"} }, muster.Invalid, "env.A"},
		"a check every 0.1 s": {func(in *muster.DeployServiceInput) {
			in.Checks = []muster.Check{{Name: "c", Kind: muster.TCPCheck, Interval: time.Second / 10}}
		}, muster.Invalid, "checks.interval"},
		"two checks of a name": {func(in *muster.DeployServiceInput) {
			in.Checks = []muster.Check{{Name: "c", Kind: muster.TTLCheck}, {Name: "c", Kind: muster.TTLCheck}}
		}, muster.Invalid, "checks.name"},
		"a URL with a password": {func(in *muster.DeployServiceInput) { in.DeployURL = "https://u:p@example.org/x" }, muster.Invalid, "deployUrl"},
		"a URL of ftp":          {func(in *muster.DeployServiceInput) { in.DeployURL = "ftp://example.org/x" }, muster.Invalid, "deployUrl"},
		"publishing nothing": {func(in *muster.DeployServiceInput) {
			in.Port, in.Publish = 0, &muster.Published{Protocol: muster.TCP}
		}, muster.Invalid, "publish"},
		"an entry with a bad cluster": {func(in *muster.DeployServiceInput) {
			in.RegisterWhenStable = []muster.RegistrationSpec{{Cluster: "1x", Protocol: "http"}}
		}, muster.Invalid, "registerWhenStable.cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			in := web(h.instance.ID)
			c.change(&in)
			_, _, err := h.DeployService(ctx, in)
			wantCode(t, err, c.code)
			if e, ok := err.(*muster.Error); c.field != "" && (!ok || e.Field != c.field) {
				t.Errorf("the field is %+v, want %s", err, c.field)
			}
		})
	}
}

// TestService_IsWhatItsInstanceLeavesIt has an agent report what was, while its instance is stopped and started.
func TestService_IsWhatItsInstanceLeavesIt(t *testing.T) {
	h := newHost(t, setup{})
	s := h.deploy(t, nil)
	h.tell(t, muster.Running, said(s, muster.ServicePending, muster.HealthBad))
	wantService(t, h, s.ID, muster.ServiceDeploying, muster.HealthUnknown)
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	wantService(t, h, s.ID, muster.ServiceRunning, muster.HealthOK)
	if _, _, err := h.StopInstance(ctx, h.instance.ID); err != nil {
		t.Fatal(err)
	}
	before := wantService(t, h, s.ID, muster.ServicePending, muster.HealthBad)
	h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
	h.tell(t, muster.Stopped, said(s, muster.ServiceRunning, muster.HealthOK))
	h.tell(t, muster.Stopped, said(s, muster.ServicePending, muster.HealthBad))
	if after := wantService(t, h, s.ID, muster.ServicePending, muster.HealthBad); after.Revision != before.Revision {
		t.Errorf("it has changed: %+v, before %+v", after, before)
	}
	checkLog(t, h.world)
}

// TestService_GoesWithoutItsMachine removes a service of an instance that its node has lost.
func TestService_GoesWithoutItsMachine(t *testing.T) {
	h := newHost(t, setup{})
	s := h.deploy(t, nil)
	h.sequence++
	h.report(t, h.node, h.sequence, nil)
	wantStatus(t, h.world, h.instance.ID, muster.Failed)
	if _, _, err := h.RemoveService(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	wantService(t, h, s.ID, muster.ServiceRemoving, muster.HealthUnknown)
	h.sequence++
	h.report(t, h.node, h.sequence, nil)
	wantService(t, h, s.ID, muster.ServiceRemoved, muster.HealthUnknown)
}
