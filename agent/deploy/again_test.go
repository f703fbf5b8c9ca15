package deploy_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

// running counts the processes that run.
func (n *node) running() (count int) {
	all, err := n.driver.ListProcesses(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range all {
		if p.State != driver.Exited {
			count++
		}
	}
	return count
}

// TestManager_RemovesBeforeItSaysNothing removes what an earlier agent started.
func TestManager_RemovesBeforeItSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		n.want(true, service())
		n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		n.stop()
		n.start()
		gone := service()
		gone.Desired = muster.WantTerminated
		n.want(true, gone)
		if r := n.said(); r.Status != muster.ServiceRemoving || len(n.host.Processes()) != 1 {
			t.Errorf("with %v there, it is said: %+v", n.host.Processes(), r)
		}
		if r := n.settled(5 * time.Second); r.ID != "" || len(n.host.Processes()) != 0 {
			t.Errorf("with %v there, it is said: %+v", n.host.Processes(), r)
		}
	})
}

// TestManager_LooksAfterNothingThatIsGone counts how often processes are listed once nothing is wanted any more.
func TestManager_LooksAfterNothingThatIsGone(t *testing.T) {
	for name, end := range map[string]func(*node){
		"left out":                func(n *node) { n.manager.Want(nil) },
		"in a machine that ended": func(n *node) { n.want(false, service()) },
		"in a machine of a restart": func(n *node) {
			n.manager.Want([]deploy.Machine{{Name: "c1-i-1-2", Addr: "10.213.0.2", Services: []*muster.ServiceAssignment{service()}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				defer func() { n.stop(); n.host.Close() }()
				n.want(true, service())
				n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
				end(n)
				n.settled(time.Second)
				if err := n.driver.Remove(t.Context(), machine); err != nil {
					t.Fatal(err)
				}
				n.settled(time.Second)
				before := n.listed.Load()
				if n.settled(time.Hour); n.listed.Load() != before {
					t.Errorf("processes were listed %d times in an hour, want none", n.listed.Load()-before)
				}
			})
		})
	}
}

// TestManager_KnowsAnnouncedOnes has a new agent look at a process that is somebody else's.
func TestManager_KnowsAnnouncedOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		s := service()
		s.Announced, s.Command = true, nil
		s.Checks = []muster.Check{muster.Check{Name: "plugin", Kind: muster.ExecCheck, Command: []string{"plugin"}, PassAfter: 2}.WithDefaults()}
		n.host.Program("plugin", func(*drivertest.Process) int { return 0 })
		for range 2 {
			n.want(true, s)
			if r := n.settled(time.Second); r.ID != "" {
				t.Errorf("before it is known, it is said: %+v", r)
			}
			n.wantSaid(10*time.Second, muster.ServiceRunning, muster.HealthOK)
			n.stop()
			n.start()
		}
	})
}

// TestManager_DoesNothingTwice is told the same each 10 s for an hour.
func TestManager_DoesNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		n.want(true, service())
		n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		before := n.listed.Load()
		for range 360 {
			n.want(true, service())
			n.settled(10 * time.Second)
		}
		if looks := n.listed.Load() - before; looks == 0 || looks > 60 {
			t.Errorf("processes were listed %d times in an hour, want once a minute", looks)
		}
	})
}

// TestManager_ChecksRunAsTheService has a check look for its command where the service does, without the service's secrets.
func TestManager_ChecksRunAsTheService(t *testing.T) {
	const files = "/opt/muster/svc-1:/opt/muster/svc-1/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for name, c := range map[string]struct {
		env  muster.Map
		want map[string]string
	}{
		"as it is":         {muster.Map{"SECRET": "x"}, map[string]string{"PATH": files, "PORT": "80"}},
		"as it says":       {muster.Map{"SECRET": "x", "PATH": "/mine", "PORT": "81"}, map[string]string{"PATH": "/mine", "PORT": "81"}},
		"as it does not":   {muster.Map{"PATH": "", "PORT": ""}, map[string]string{"PATH": files, "PORT": "80"}},
		"with nothing set": {nil, map[string]string{"PATH": files, "PORT": "80"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				defer func() { n.stop(); n.host.Close() }()
				allowed := t.TempDir()
				if err := os.WriteFile(filepath.Join(allowed, "app"), []byte("#!/bin/sh\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				n.stop()
				n.fetch.HostPaths = []string{allowed}
				n.start()
				var plugin, service map[string]string
				n.host.Program("plugin", func(p *drivertest.Process) int { plugin = p.Spec.Env; return 0 })
				n.host.Program("httpd", func(p *drivertest.Process) int { service = p.Spec.Env; <-p.Killed; return 0 })
				s := serviceOf(c.env)
				s.DeployURL = "file://" + allowed + "/app"
				n.want(true, s)
				n.wantSaid(2*time.Second, muster.ServiceRunning, muster.HealthOK)
				if diff := cmp.Diff(c.want, plugin); diff != "" {
					t.Errorf("the check has another environment (-want +got):\n%s", diff)
				}
				for name, want := range c.want {
					if service[name] != want {
						t.Errorf("the service has %s=%q, want %q", name, service[name], want)
					}
				}
			})
		})
	}
}

func serviceOf(env muster.Map) *muster.ServiceAssignment {
	s := service()
	s.Env = env
	s.Checks = []muster.Check{muster.Check{Name: "plugin", Kind: muster.ExecCheck, Command: []string{"plugin"}}.WithDefaults()}
	return s
}

// TestManager_PublishesBeforeAllIsFetched has a new agent find a service that runs, beside one whose files do not come.
func TestManager_PublishesBeforeAllIsFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		s := service()
		s.Publish = &muster.Published{Port: 30000, Protocol: muster.TCP}
		n.want(true, s)
		n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		n.stop()
		n.fetch.Transport = never{}
		n.start()
		slow := *s
		slow.ID, slow.DeployURL, slow.Publish = "svc-2", "http://h/app", nil
		n.want(true, s, &slow)
		n.settled(time.Second)
		reports := n.manager.Reports(machine)
		if len(reports) != 2 || reports[0].Status != muster.ServiceRunning || reports[1].Status != muster.ServiceDeploying {
			t.Errorf("after a second it is said: %+v", reports)
		}
	})
}

// never answers no request.
type never struct{}

func (never) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestManager_WaitsForWhatTakesSeveralRuns has a new agent find a service that is well, by a check that has to pass more
// than once.
func TestManager_WaitsForWhatTakesSeveralRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		s := service()
		s.Checks = []muster.Check{muster.Check{Name: "plugin", Kind: muster.ExecCheck, Command: []string{"plugin"}, PassAfter: 6}.WithDefaults()}
		n.host.Program("plugin", func(*drivertest.Process) int { return 0 })
		n.want(true, s)
		n.wantSaid(61*time.Second, muster.ServiceRunning, muster.HealthOK)
		n.stop()
		n.start()
		n.want(true, s)
		if r := n.settled(45 * time.Second); r.ID != "" {
			t.Errorf("before it is known, it is said: %+v", r)
		}
		n.wantSaid(10*time.Second, muster.ServiceRunning, muster.HealthOK)
	})
}

// TestManager_KnowsWhatHasEnded has a new agent find a process that was given up, whose files cannot be got any more.
func TestManager_KnowsWhatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		s := service()
		s.Restart.When = muster.RestartNever
		n.want(true, s)
		n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		n.stop()
		if err := n.host.ExitProcess(driver.ProcessRef{Machine: machine, Name: "svc-1"}, 3); err != nil {
			t.Fatal(err)
		}
		n.start()
		s.DeployURL = "file:///nowhere"
		n.want(true, s)
		if r := n.wantSaid(time.Second, muster.ServiceFailed, muster.HealthBad); r.ExitCode == nil || *r.ExitCode != 3 {
			t.Errorf("it is said: %+v", r)
		}
	})
}

func TestManager_DrainsBeforeItEnds(t *testing.T) {
	published := &muster.Published{Port: 30000, Protocol: muster.TCP}
	for name, c := range map[string]struct {
		order func(*muster.ServiceAssignment)
		after muster.ServiceStatus // empty: nothing is said of it any more
	}{
		"started anew": {func(s *muster.ServiceAssignment) { s.Generation = 2 }, muster.ServiceRunning},
		"stopped":      {func(s *muster.ServiceAssignment) { s.Desired = muster.WantStopped }, muster.ServiceStopped},
		"removed":      {func(s *muster.ServiceAssignment) { s.Desired = muster.WantTerminated }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				defer func() { n.stop(); n.host.Close() }()
				s := service()
				s.Publish = published
				n.want(true, s)
				first := *n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK).PID
				ordered := *s
				ordered.Drain = 5 * time.Second
				c.order(&ordered)
				n.want(true, &ordered)
				n.settled(2 * time.Second)
				n.serves(first)
				n.stop() // a new agent is told what is left of it
				n.start()
				left := ordered
				left.Drain = 3 * time.Second
				n.want(true, &left)
				if r := n.settled(2 * time.Second); r.Status != muster.ServiceStopping && r.Status != muster.ServiceRemoving {
					t.Errorf("while it drains it is said: %+v", r)
				}
				n.serves(first)
				r := n.settled(3 * time.Second)
				if r.Status != c.after || r.PID != nil && *r.PID == first {
					t.Errorf("drained, it is said: %+v, want %s", r, c.after)
				}
				if last := n.ports.last(); len(last) == 1 != (c.after == muster.ServiceRunning) {
					t.Errorf("drained, %v is published", last)
				}
			})
		})
	}
}

// serves checks that a process runs, and that the port which leads to it was never taken back.
func (n *node) serves(pid int) {
	n.t.Helper()
	all, err := n.driver.ListProcesses(n.t.Context())
	if err != nil || len(all) != 1 || all[0].PID != pid || all[0].State == driver.Exited {
		n.t.Errorf("the processes are %+v, %v, want %d", all, err, pid)
	}
	published := n.ports.published()
	for _, set := range published[1:] {
		if len(set) != 1 {
			n.t.Errorf("while it drains, %v is published", published)
		}
	}
}

func TestManager_DrainsNothingThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		defer func() { n.stop(); n.host.Close() }()
		s := service()
		s.Restart.When = muster.RestartNever
		n.want(true, s)
		n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		if err := n.host.ExitProcess(driver.ProcessRef{Machine: machine, Name: "svc-1"}, 3); err != nil {
			t.Fatal(err)
		}
		n.wantSaid(time.Second, muster.ServiceFailed, muster.HealthBad)
		again := *s
		again.Generation, again.Drain = 2, time.Minute
		n.want(true, &again)
		n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
		n.want(true, &again) // told of once more, as by a beat
		n.wantSaid(time.Second, muster.ServiceRunning, muster.HealthOK)
	})
}
