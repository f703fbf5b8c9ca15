package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// secretsStay looks for a value of an environment wherever the first host's agent and the server could have left it. The
// server's row of the service has it: its node has to get it from there.
func (v *town) secretsStay(t *testing.T) {
	n := v.light[0]
	logs, err := os.ReadFile(v.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for _, s := range v.running[n] {
		changes, err := v.api.NewestChanges(t.Context(), string(s.ID), 100)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&said, "%+v %+v %s", v.seen(n, s.Name), changes, v.written(s.ID))
	}
	var own []string
	for _, name := range []string{"program", "lone"} {
		own = append(own, fmt.Sprintf("a value in /proc/%d/environ", *v.running[n][name].PID))
	}
	for what, c := range map[string]struct {
		search  func([]planted) []string
		control string
	}{
		"the agent's files": {func(of []planted) []string { return inFiles(t, n.state, of) }, sitePage},
		"the database": {func(of []planted) []string {
			return inTables(t, filepath.Join(v.dir, "server", "muster.db"), of, "services.env")
		}, "SECRET"},
		"the logs":    {func(of []planted) []string { return in("the logs", logs, of) }, "is registered"},
		"the answers": {func(of []planted) []string { return in("the answers", []byte(said.String()), of) }, "SECRET"},
		"the processes": {func(of []planted) []string {
			return slices.DeleteFunc(inProcesses(t, of), func(found string) bool { return slices.Contains(own, found) })
		}, "sleep"},
	} {
		if found := c.search([]planted{ofText("a value", secret)}); len(found) > 0 {
			t.Errorf("%s: %q", what, found)
		}
		if found := c.search([]planted{ofText("a control", c.control)}); len(found) == 0 {
			t.Errorf("%s: %q was not found, so the search proves nothing", what, c.control)
		}
	}
	if found := inProcesses(t, []planted{ofText("a value", secret)}); len(found) != len(own) {
		t.Errorf("the processes have it in %q, want %q", found, own)
	}
}

// wrongIsRefused asks for what cannot be, and what only the node can know.
func (v *town) wrongIsRefused(t *testing.T) {
	n := v.light[0]
	stopped := v.launch(n, muster.Nano, muster.Stopped, "exit 0")
	taken := v.running[n]["site"].Publish.Port
	for name, c := range map[string]struct {
		change func(*muster.DeployServiceInput)
		code   muster.Code
		says   string
	}{
		"a stopped instance":       {func(in *muster.DeployServiceInput) { in.InstanceID = &stopped.ID }, muster.Conflict, "start it first, with muster instance start"},
		"a port of another":        {func(in *muster.DeployServiceInput) { in.Publish.Port = taken }, muster.Conflict, "choose another"},
		"a name of 300 characters": {func(in *muster.DeployServiceInput) { in.Name = strings.Repeat("x", 300) }, muster.Invalid, "name"},
		"a variable with a NUL":    {func(in *muster.DeployServiceInput) { in.Env = muster.Map{"A": "a\x00b"} }, muster.Invalid, "env"},
		"a variable with a line":   {func(in *muster.DeployServiceInput) { in.Env = muster.Map{"A\nB": "a"} }, muster.Invalid, "env"},
		"a check too often": {func(in *muster.DeployServiceInput) {
			in.Checks = []muster.Check{{Name: "c", Kind: muster.TCPCheck, Interval: time.Millisecond}}
		}, muster.Invalid, "interval"},
	} {
		in := muster.DeployServiceInput{InstanceID: &v.in[n].ID, Name: "wrong", Command: []string{"sleep", "600"}, Port: 9000, Publish: &muster.Published{Protocol: muster.TCP}}
		c.change(&in)
		_, err := v.api.DeployService(t.Context(), in)
		if muster.CodeOf(err) != c.code || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v, want %s with %q", name, err, c.code, c.says)
		}
	}
	v.portOfANeighbour(t, n)
	v.portOfAnother(t, n)
}

// portOfAnother deploys a service for a port at which something else of its instance answers: it is never well by that.
func (v *town) portOfAnother(t *testing.T, n hostNode) {
	const port = 9100
	squatter := v.deploy(n, muster.DeployServiceInput{Name: "squatter", Command: []string{"httpd", "-f", "-p", fmt.Sprint(port)}})
	v.become(squatter, "healthy", healthy)
	until(t, "the squatter listens", func() bool {
		out, _ := n.within(*v.in[n].PID, fmt.Sprintf("netstat -ltn | grep -c :%d", port)).Output()
		return strings.TrimSpace(string(out)) == "1"
	})
	s := v.deploy(n, muster.DeployServiceInput{
		Name: "second", Command: []string{"sleep", "600"}, Port: port, Restart: &muster.RestartPolicy{When: muster.RestartNever},
		Checks: []muster.Check{{Name: "up", Kind: muster.TCPCheck}},
	})
	s = v.become(s, "failed", func(s *client.Service) bool { return s.Status == muster.ServiceFailed })
	if want := "another process of the instance listens at it already: stop that one, or give the service another port"; !strings.Contains(s.StatusReason, want) {
		t.Errorf("it failed because %q, want %q", s.StatusReason, want)
	}
	if s.Health != muster.HealthBad || s.StartedAt != nil {
		t.Errorf("it is %s, and ran from %v", s.Health, s.StartedAt)
	}
	v.removeAll([]*client.Service{s, squatter})
}

// portOfANeighbour publishes a port that a process of the node has; that process ends.
func (v *town) portOfANeighbour(t *testing.T, n hostNode) {
	neighbour := n.on("busybox", "nc", "-l", "-p", "30500")
	if err := neighbour.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = neighbour.Process.Kill() })
	until(t, "the neighbour listens", func() bool {
		out, _ := n.on("ss", "-Hltn", "sport = :30500").Output()
		return len(out) > 0
	})
	s := v.deploy(n, muster.DeployServiceInput{Name: "late", Command: []string{"sleep", "600"}, Port: 9000, Publish: &muster.Published{Port: 30500, Protocol: muster.TCP}})
	s = v.become(s, "unhealthy", func(s *client.Service) bool { return s.Health == muster.HealthBad })
	if want := "a process of this node has port 30500/TCP: publish another one"; s.Status != muster.ServiceRunning || !strings.Contains(s.HealthReason, want) {
		t.Errorf("it is %s because %q, want %q in it", s.Status, s.HealthReason, want)
	}
	_ = neighbour.Process.Kill()
	_ = neighbour.Wait()
	s = v.become(s, "healthy", healthy)
	v.removeAll([]*client.Service{s})
}

// checkHangs has a check that hangs, with children.
func (v *town) checkHangs(t *testing.T) {
	n := v.light[0]
	const nap = "86397.5"
	s := v.deploy(n, muster.DeployServiceInput{Name: "hangs", Command: []string{"sleep", "600"}, Checks: []muster.Check{{
		Name: "nap", Kind: muster.ExecCheck, Interval: time.Minute, Timeout: time.Second,
		Command: []string{"sh", "-c", "setsid sleep " + nap + " & sleep " + nap + " & echo asleep; sleep " + nap},
	}}})
	s = v.become(s, "looked at", func(s *client.Service) bool { return len(s.CheckResults) == 1 && s.CheckResults[0].At != nil })
	if r := s.CheckResults[0]; r.Status == muster.CheckOK || r.Status == muster.CheckWarning || !strings.Contains(r.Output, "asleep") || !strings.Contains(r.Output, "1s") || healthy(s) {
		t.Errorf("it is %s, and its check found %+v", s.Health, r)
	}
	if found := inProcesses(t, []planted{ofText("a nap", nap)}); len(found) > 0 {
		t.Errorf("the check has left %q", found)
	}
	v.removeAll([]*client.Service{s})
}

// agentsAreKilled kills each agent: nothing changes but its node.
func (v *town) agentsAreKilled(t *testing.T) {
	for _, n := range v.kinds {
		node := v.await(n, 1)
		was := map[string]*client.Service{}
		for name := range v.running[n] {
			was[name] = v.seen(n, name)
		}
		since := v.now()
		if l, light := n.(*lightNode); light {
			_ = l.agent.Process.Kill()
			_ = l.agent.Wait()
			v.reachAll() // nobody is needed for that
			l.start(t, "muster")
		} else {
			v.heavy.Run(t, "systemctl", "kill", "--signal=KILL", "muster-agent.service")
		}
		again := v.await(n, node.Incarnation+1)
		for name, before := range was {
			after := v.become(before, "looked at again", func(s *client.Service) bool {
				return !slices.ContainsFunc(s.CheckResults, func(r muster.CheckResult) bool { return r.At == nil || r.At.Before(again.RegisteredAt) })
			})
			if *after.PID != *before.PID || after.Revision != before.Revision || !healthy(after) {
				t.Errorf("after the kill of the agent %s on %s is %+v, before %+v", name, n.id(), after, before)
			}
		}
		changes, err := v.api.Changes(t.Context(), client.ChangesInput{Since: since, First: 100})
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		for _, e := range changes.Edges {
			said = append(said, fmt.Sprintf("%s %s: %s", e.Node.Kind, e.Node.ObjectID, e.Node.Reason))
		}
		if want := []string{fmt.Sprintf("NODE %s: registered again", node.UID)}; !slices.Equal(said, want) {
			t.Errorf("the kill of the agent on %s made the changes %q, want %q", n.id(), said, want)
		}
	}
	v.reachAll()
}

// cableIsPulled cuts a node off. Its services go with it, by its one change, and come back so.
func (v *town) cableIsPulled(t *testing.T) {
	n, since := v.light[0], v.now()
	before := v.seen(n, "site")
	v.net.link(t, n.k, "down")
	until(t, "the node is UNHEALTHY", func() bool {
		node, err := v.api.Node(t.Context(), n.id())
		return err == nil && node.Status == muster.Unhealthy
	})
	for name := range v.running[n] {
		s := v.seen(n, name)
		if s.Health != muster.HealthBad || s.UnhealthyBecause == nil || !strings.Contains(s.UnhealthyBecause.Reason, "its node light1 is UNHEALTHY") || s.UnhealthyBecause.Silence == nil {
			t.Errorf("%s is %s because of %+v", name, s.Health, s.UnhealthyBecause)
		}
	}
	_, err := v.api.DeployService(t.Context(), muster.DeployServiceInput{InstanceID: &v.in[n].ID, Name: "cut", Command: []string{"true"}})
	if muster.CodeOf(err) != muster.Conflict || !strings.Contains(err.Error(), "wait until it is back") {
		t.Errorf("a deploy while the node is cut off: %v", err)
	}
	of := &muster.HealthFilter{ServiceID: &before.ID}
	if got := v.turns(since, of); !slices.Equal(got, []string{"node UNHEALTHY"}) {
		t.Errorf("the changes of health were %q", got)
	}
	v.net.link(t, n.k, "up")
	v.await(n, 1)
	for name := range v.running[n] {
		if s := v.seen(n, name); !healthy(s) || *s.PID != *v.running[n][name].PID {
			t.Errorf("%s is %+v", name, s)
		}
	}
	if got := v.turns(since, of); !slices.Equal(got, []string{"node UNHEALTHY", "node HEALTHY"}) {
		t.Errorf("the changes of health were %q", got)
	}
	if after := v.seen(n, "site"); after.Revision != before.Revision {
		t.Errorf("the service has changed: %+v, before %+v", after, before)
	}
}

// instanceRestarts stops and starts an instance: its services go and come with it, at the ports that they had, and of
// what their nodes have kept.
func (v *town) instanceRestarts(t *testing.T) {
	asked := v.shelf.asked.Load()
	for _, n := range v.kinds {
		id := v.in[n].ID
		if _, err := v.api.StopInstance(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		v.settle(v.in[n], muster.Stopped)
		for name := range v.running[n] {
			if s := v.seen(n, name); s.Status != muster.ServicePending || s.Health != muster.HealthBad || s.PID != nil {
				t.Errorf("in a stopped instance on %s %s is %+v", n.id(), name, s)
			}
		}
		if _, err := v.api.StartInstance(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		v.in[n] = v.settle(v.in[n], muster.Running)
		for name, s := range v.running[n] {
			v.running[n][name] = v.become(s, "healthy", healthy)
			if v.running[n][name].Publish.Port != s.Publish.Port {
				t.Errorf("%s on %s has port %d, it had %d", name, n.id(), v.running[n][name].Publish.Port, s.Publish.Port)
			}
		}
	}
	v.reachAll()
	if more := v.shelf.asked.Load() - asked; more != 0 {
		t.Errorf("their files were asked for %d times, want never again", more)
	}
}

// theyAreRemoved removes them: their processes, files and ports go.
func (v *town) theyAreRemoved(t *testing.T) {
	for _, n := range v.kinds {
		port := v.running[n]["site"].Publish.Port
		for name, s := range v.running[n] {
			v.removeAll([]*client.Service{s})
			if _, err := n.on("kill", "-0", fmt.Sprint(*s.PID)).Output(); err == nil {
				t.Errorf("the process of %s on %s is there", name, n.id())
			}
		}
		if out, err := n.within(*v.in[n].PID, "ls -A /opt/muster").CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("on %s there is left of services: %s, %v", n.id(), out, err)
		}
		if out, err := n.on("nft", "list", "ruleset").CombinedOutput(); err != nil || strings.Contains(string(out), fmt.Sprint(port)) {
			t.Errorf("on %s port %d is left, %v: %s", n.id(), port, err, out)
		}
	}
}
