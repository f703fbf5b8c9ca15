package deploy

import (
	"cmp"
	"context"
	"maps"
	"path"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/proc"
)

// wanted is what is wanted of one service.
type wanted struct {
	service *muster.ServiceAssignment // nil: nothing is said of it any more
	machine string
	addr    string
	running bool // the machine
	// drained is until when its process goes on before it is stopped, started anew or removed; zero: it doesn't.
	drained time.Time
}

func (w wanted) ref() driver.ProcessRef {
	return driver.ProcessRef{Machine: w.machine, Name: string(w.service.ID)}
}

// given is where the service's process and its checks run, and what of their environment it need not say.
func (w wanted) given() (dir string, env map[string]string) {
	s := w.service
	dir, lookup := Surroundings(s.ID, s.DeployURL, s.Dir)
	env = map[string]string{}
	if lookup = cmp.Or(s.Env["PATH"], lookup); lookup != "" {
		env["PATH"] = lookup
	}
	if s.Port != 0 {
		env["PORT"] = cmp.Or(s.Env["PORT"], itoa(s.Port))
	}
	return dir, env
}

// unit is one service. One goroutine works on it.
type unit struct {
	m      *Manager
	id     muster.ServiceID
	woken  chan struct{}
	looked chan struct{} // closed once it is known what an earlier agent has left of it
	look   func()        // closes it, once

	mu       sync.Mutex
	want     wanted
	told     muster.ServiceReportInput // what is said of it
	machine  string                    // that told is of
	known    bool                      // told says something
	gone     bool                      // nothing is left of it
	checking *checking                 // while its checks run
	made     string                    // the checksum of what it is made of; empty: not known, or of nothing

	// Only its goroutine touches these.
	deployed int64     // the generation whose files are in place, or need none
	failed   int64     // the generation that could not be deployed
	adopted  bool      // an earlier agent started it
	since    time.Time // when this agent saw it first
	mending  bool      // it was started again, and its checks have not all passed since
	dropped  bool      // the supervisor was told to remove it
	down     bool      // its process was seen not to run
	lastPID  int
	attended driver.ProcessRef // that the supervisor was told of; the zero one: none
}

func newUnit(m *Manager, id muster.ServiceID) *unit {
	looked := make(chan struct{})
	return &unit{m: m, id: id, woken: make(chan struct{}, 1), looked: looked, look: sync.OnceFunc(func() { close(looked) }), since: time.Now()}
}

func (u *unit) nudge() {
	select {
	case u.woken <- struct{}{}:
	default:
	}
}

// set says what is wanted. When that is what was wanted already, there is nothing to do: to look at a process
// costs a look at all of them.
func (u *unit) set(w wanted) {
	u.mu.Lock()
	same := reflect.DeepEqual(u.want, w)
	u.want = w
	u.mu.Unlock()
	if !same {
		u.nudge()
	}
}

func (u *unit) wanted() wanted {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.want
}

// relook is when a service is looked at again that nobody has told anything of.
const relook = time.Minute

// run works on the service until nothing is wanted of it or ctx ends.
func (u *unit) run(ctx context.Context) {
	defer u.stopChecks()
	defer u.look()
	for {
		w := u.wanted()
		if w.service == nil {
			u.m.publisher.set(u.id, nil)
			u.leave()
			return
		}
		wait := u.pass(ctx, w)
		u.look()
		if wait == 0 {
			wait = relook
		}
		select {
		case <-ctx.Done():
			return
		case <-u.woken:
		case <-time.After(wait):
		}
	}
}

// pass does what is to be done now, and says when to look again; 0: when it is woken, or after a while.
func (u *unit) pass(ctx context.Context, w wanted) time.Duration {
	s := w.service
	if u.attended != (driver.ProcessRef{}) && u.attended != w.ref() {
		u.leave() // its instance was started again, as another machine
	}
	switch {
	case s.Desired == muster.WantTerminated:
		return u.remove(ctx, w)
	case s.Desired == muster.WantStopped:
		return u.halt(w)
	case !w.running:
		u.withdraw()
		u.leave()
		u.deployed, u.failed, u.down, u.mending = 0, 0, false, u.mending || u.lastPID != 0
		u.tell(w, muster.ServiceReportInput{Status: muster.ServicePending, Reason: "its instance does not run", Health: muster.HealthBad})
		return 0
	case s.Announced:
		u.adopted = true // it ran before, whoever looks at it
		u.expose(ctx, w, time.Now())
		return u.tellRunning(w, proc.Status{State: proc.Running})
	case u.m.processes == nil:
		u.tell(w, muster.ServiceReportInput{Status: muster.ServiceFailed, Health: muster.HealthBad, Reason: "this node cannot run services"})
		return 0
	case s.Ended || u.failed == s.Generation:
		return 0
	}
	return u.keep(ctx, w)
}

// remove ends the process and forgets all of it.
func (u *unit) remove(ctx context.Context, w wanted) time.Duration {
	u.mu.Lock()
	gone := u.gone
	u.mu.Unlock()
	if gone {
		return 0
	}
	if wait := u.drain(w); wait > 0 {
		return wait
	}
	u.withdraw()
	if u.m.supervisor != nil && !w.service.Announced {
		if !u.dropped {
			u.attended, u.dropped = w.ref(), true
			u.m.supervisor.Drop(w.ref())
		}
		if _, kept := u.m.supervisor.Status(w.ref()); kept {
			return time.Second // or when it is not any more
		}
	}
	if err := u.uninstall(ctx, w); err != nil {
		u.m.o.Logger.Warn("files of a service are left", "service", u.id, "err", err)
		return removeRetry
	}
	u.mu.Lock()
	u.gone, u.known = true, false
	u.mu.Unlock()
	u.m.o.Changed()
	return 0
}

// removeRetry is when files that could not be deleted are tried again.
const removeRetry = 5 * time.Second

// leave has the supervisor look after the process no longer. What runs goes on.
func (u *unit) leave() {
	if u.attended != (driver.ProcessRef{}) {
		u.m.supervisor.Forget(u.attended)
		u.attended = driver.ProcessRef{}
	}
}

// halt stops the process.
func (u *unit) halt(w wanted) time.Duration {
	if wait := u.drain(w); wait > 0 {
		return wait
	}
	u.withdraw()
	if u.m.supervisor == nil || w.service.Announced || !w.running {
		u.leave()
		u.tell(w, muster.ServiceReportInput{Status: muster.ServiceStopped, Health: muster.HealthUnknown})
		return 0
	}
	u.end(w)
	status, _ := u.m.supervisor.Status(w.ref())
	r := muster.ServiceReportInput{Status: muster.ServiceStopping, Health: muster.HealthUnknown, ExitCode: status.ExitCode}
	if status.State == proc.Stopped {
		r.Status = muster.ServiceStopped
	}
	u.tell(w, r)
	return 0
}

// drain is how much longer a process goes on that is to be stopped, replaced or removed: its
// entries are withdrawn by now, and those who have looked it up before finish with it. 0: it
// has gone on for long enough, or was not in use.
func (u *unit) drain(w wanted) time.Duration {
	left := time.Until(w.drained)
	if left <= 0 || u.down || !w.running {
		return 0
	}
	u.stopChecks()
	u.publish(w) // which a new agent has not done yet
	u.tell(w, muster.ServiceReportInput{Status: muster.ServiceStopping, Health: muster.HealthUnknown, Reason: "draining"})
	return left
}

// end has the process stopped.
func (u *unit) end(w wanted) {
	u.attended = w.ref()
	u.m.supervisor.Halt(w.ref(), driver.Stop{Grace: stopGrace})
}

// stopGrace is how long a service has to end by itself when it is stopped.
const stopGrace = 10 * time.Second

// keep has the process run.
func (u *unit) keep(ctx context.Context, w wanted) time.Duration {
	s := w.service
	if u.deployed != s.Generation {
		if wait := u.drain(w); wait > 0 {
			return wait
		}
		switch done, err := u.deploy(ctx, w); {
		case ctx.Err() != nil, !done:
			return 0 // something else is wanted by now
		case err != nil:
			u.failed = s.Generation
			u.withdraw()
			u.end(w) // what runs is of an earlier start
			u.tell(w, muster.ServiceReportInput{Status: muster.ServiceFailed, Health: muster.HealthBad, Reason: muster.Printable(err.Error(), muster.MaxReasonBytes)})
			return 0
		}
		u.deployed = s.Generation
		if u.adopted {
			u.publish(w)
		}
	}
	u.attended = w.ref()
	u.m.supervisor.Keep(u.spec(w))
	status, _ := u.m.supervisor.Status(w.ref())
	if status.Generation != s.Generation {
		return time.Second / 10 // it is being looked at
	}
	if status.State == proc.Running {
		u.down = false
		u.expose(ctx, w, status.Started)
		return u.tellRunning(w, status)
	}
	u.down = true
	u.withdraw()
	u.tell(w, ofProcess(status))
	if status.State == proc.Waiting {
		u.mending = true
	}
	return 0
}

// ofProcess is what is said of a service whose process does not run.
func ofProcess(p proc.Status) muster.ServiceReportInput {
	r := muster.ServiceReportInput{Reason: p.Reason, Restarts: p.Restarts, ExitCode: p.ExitCode, Health: muster.HealthUnknown}
	switch p.State {
	case proc.Waiting:
		r.Status, r.Health = muster.ServiceRestarting, muster.HealthBad
	case proc.Stopping:
		r.Status = muster.ServiceStopping
	case proc.Stopped:
		r.Status, r.Health = muster.ServiceStopped, muster.HealthBad // nobody asked for it
	case proc.Failed:
		r.Status, r.Health = muster.ServiceFailed, muster.HealthBad
	default:
		r.Status = muster.ServiceDeploying
		if p.Restarts > 0 {
			r.Status, r.Health = muster.ServiceRestarting, muster.HealthBad
		}
	}
	return r
}

// spec is the process of a service.
func (u *unit) spec(w wanted) proc.Spec {
	s := w.service
	dir, given := w.given()
	p := driver.ProcessSpec{ProcessRef: w.ref(), Command: s.Command, Env: map[string]string{}, User: s.User, Dir: dir}
	maps.Copy(p.Env, s.Env)
	maps.Copy(p.Env, given)
	if s.Publish == nil || s.Publish.Protocol == muster.TCP {
		p.Port = s.Port
	}
	if s.DeployURL != "" && len(p.Command) == 0 {
		p.Command = []string{path.Join(driver.ArtifactsDir, string(s.ID), fileName(s.DeployURL))}
	}
	return proc.Spec{ProcessSpec: p, Generation: s.Generation, Artifact: u.artifact(), Restart: s.Restart, Stop: driver.Stop{Grace: stopGrace}}
}

// tell notes what is said of the service, and that there is news when that differs.
func (u *unit) tell(w wanted, r muster.ServiceReportInput) {
	r.ID, r.Generation = u.id, w.service.Generation
	u.mu.Lock()
	r.SHA256 = u.made
	news := !u.known || u.machine != w.machine || !sameReport(u.told, r)
	if u.checking != nil {
		found := statuses(u.checking.checker.Results())
		news = news || !slices.Equal(found, u.checking.told)
		u.checking.told = found
	}
	u.told, u.machine, u.known, u.gone = r, w.machine, true, false
	u.mu.Unlock()
	if news {
		u.m.o.Changed()
	}
}

// sameReport compares what makes a change, but for what checks found.
func sameReport(a, b muster.ServiceReportInput) bool {
	same := func(x, y *int) bool { return x == y || x != nil && y != nil && *x == *y }
	return a.Generation == b.Generation && a.Status == b.Status && a.Reason == b.Reason && a.Health == b.Health &&
		a.HealthReason == b.HealthReason && a.SHA256 == b.SHA256 && a.Restarts == b.Restarts && same(a.PID, b.PID) && same(a.ExitCode, b.ExitCode)
}

// report is what is said of the service, if it is of that machine. One that is to be
// removed is there until nothing is left of it: to say nothing of it confirms that.
func (u *unit) report(machine string) (muster.ServiceReportInput, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.want.service; s != nil && s.Desired == muster.WantTerminated && !u.gone && u.want.machine == machine {
		return muster.ServiceReportInput{ID: u.id, Generation: s.Generation, Status: muster.ServiceRemoving, Health: muster.HealthUnknown}, true
	}
	if !u.known || u.machine != machine {
		return muster.ServiceReportInput{}, false
	}
	r := u.told
	if u.checking != nil {
		r.Checks = u.checking.checker.Results()
		for i := range r.Checks {
			r.Checks[i].Since = nil // the registry says since when
		}
	}
	return r, true
}
