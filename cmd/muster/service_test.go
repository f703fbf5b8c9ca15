package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// town are hosts of both kinds, each with an instance that services are deployed into, and what they are made of.
type town struct {
	*hosts
	web     string // the URL of the artifacts
	shelf   *shelf
	kinds   []hostNode
	in      map[hostNode]*client.Instance
	addr    map[hostNode]string
	running map[hostNode]map[string]*client.Service // by their names
}

func newTown(t *testing.T) *town {
	t.Helper()
	t.Setenv("MUSTER_LOG_LEVEL", "DEBUG")
	t.Setenv("MUSTER_UNHEALTHY_AFTER", "8s")
	v := &town{
		hosts: newHosts(t), shelf: &shelf{files: artifacts(t)}, in: map[hostNode]*client.Instance{}, addr: map[hostNode]string{},
		running: map[hostNode]map[string]*client.Service{},
	}
	v.kinds = []hostNode{v.light[0], v.heavy}
	v.addr[v.light[0]], v.addr[v.heavy] = addressOf(1), addressOf(heavyHost)
	for _, n := range v.kinds {
		v.in[n] = v.begin(n, muster.Nano, "exec sleep 3600")
		v.running[n] = map[string]*client.Service{}
	}
	for n, i := range v.in {
		v.in[n] = v.settle(i, muster.Running)
	}
	v.web = v.net.serve(t, hostServer, v.shelf)
	return v
}

const sitePage = "a site of a few words"

// deploy has a service deployed into the instance of a node.
func (v *town) deploy(n hostNode, in muster.DeployServiceInput) *client.Service {
	v.t.Helper()
	in.InstanceID = &v.in[n].ID
	s, err := v.api.DeployService(v.t.Context(), in)
	if err != nil {
		v.t.Fatalf("deploy %s on %s: %v", in.Name, n.id(), err)
	}
	return s
}

// become waits until a service is as wanted, and returns it.
func (v *town) become(s *client.Service, what string, ok func(*client.Service) bool) *client.Service {
	v.t.Helper()
	now, done := s, false
	defer func() {
		if !done {
			v.t.Logf("%s is %+v", s.ID, now)
		}
	}()
	until(v.t, fmt.Sprintf("%s, %s, is %s", s.ID, s.Name, what), func() bool {
		found, err := v.api.Service(v.t.Context(), s.ID)
		if err == nil {
			now = found
		}
		done = err == nil && ok(now)
		return done
	})
	return now
}

func healthy(s *client.Service) bool {
	return s.Status == muster.ServiceRunning && s.Health == muster.HealthOK
}

func (v *town) seen(n hostNode, name string) *client.Service {
	v.t.Helper()
	s, err := v.api.Service(v.t.Context(), v.running[n][name].ID)
	if err != nil {
		v.t.Fatal(err)
	}
	return s
}

// turns are the changes of health since a cursor.
func (v *town) turns(since string, f *muster.HealthFilter) []string {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), 30*time.Second)
	defer cancel()
	var all []string
	synced := errors.New("synced")
	err := v.api.WatchHealth(ctx, f, client.WatchOptions{Since: since}, func(e client.Event) error {
		switch {
		case e.Type == muster.EventSynced:
			return synced
		case e.Service != nil:
			all = append(all, "service "+string(e.Service.ReportedHealth))
		case e.Type == muster.EventChange:
			all = append(all, strings.ToLower(string(e.Kind))+" "+e.Status)
		}
		return nil
	})
	if !errors.Is(err, synced) {
		v.t.Fatal(err)
	}
	return all
}

func (v *town) now() string {
	v.t.Helper()
	info, err := v.api.ServerInfo(v.t.Context())
	if err != nil {
		v.t.Fatal(err)
	}
	return info.Cursor
}

// TestServices deploys web servers on two hosts of two kinds and lets happen to them what happens.
func TestServices(t *testing.T) {
	v := newTown(t)
	run := func(name string, test func(*testing.T)) {
		if t.Failed() {
			return // what comes next stands on it
		}
		t.Run(name, func(t *testing.T) {
			v.t = t
			test(t)
		})
		v.t = t
	}
	run("they are deployed", v.deployAll)
	run("they are reached from everywhere", func(*testing.T) { v.reachAll() })
	run("they are reached by UDP and by IPv6", v.reachOtherwise)
	run("they have no more than their instance", v.noMore)
	run("their secrets are nowhere else", v.secretsStay)
	run("bad ones fail", v.badOnesFail)
	run("what is asked for wrongly is refused", v.wrongIsRefused)
	run("one is killed", v.oneIsKilled)
	run("a check fails", v.checkFails)
	run("a check hangs", v.checkHangs)
	run("agents are killed", v.agentsAreKilled)
	run("a cable is pulled", v.cableIsPulled)
	run("an instance is restarted", v.instanceRestarts)
	run("they are removed", v.theyAreRemoved)
}

// secret is what the environment of services has on the first host, whose files and processes can be searched.
const secret = "planted-e5a1"

func (v *town) secretOf(n hostNode) string {
	if n == v.kinds[0] {
		return secret + "\nand a line"
	}
	return "another"
}

func (v *town) deployAll(t *testing.T) {
	since := v.now()
	every := func(c muster.Check) []muster.Check {
		c.Interval = time.Second
		return []muster.Check{c}
	}
	for _, n := range v.kinds {
		for _, in := range []muster.DeployServiceInput{
			{
				Name: "site", DeployURL: v.web + "site.tar.gz", SHA256: sumOf(v.shelf.files["site.tar.gz"]), Port: 8080,
				Command: []string{"httpd", "-f", "-p", "8080", "-h", "pages"},
				Checks: append(
					every(muster.Check{Name: "page", Kind: muster.HTTPCheck, Body: sitePage}),
					muster.Check{Name: "plugin", Kind: muster.ExecCheck, Command: []string{"plugin"}},
				),
			},
			{
				Name: "program", DeployURL: v.web + "program.tar.zst", SHA256: strings.ToUpper(sumOf(v.shelf.files["program.tar.zst"])), Port: 8081,
				Command: []string{"webapp"}, Env: muster.Map{"NAME": "program", "SECRET": v.secretOf(n)},
				Checks: every(muster.Check{Name: "health", Kind: muster.HTTPCheck, Path: "/health", FailAfter: 3}),
			},
			{
				Name: "lone", DeployURL: v.web + "webapp", Port: 8082,
				Env: muster.Map{"NAME": "lone", "SECRET": v.secretOf(n)},
			},
		} {
			in.Publish = &muster.Published{Protocol: muster.TCP}
			v.running[n][in.Name] = v.deploy(n, in)
		}
	}
	for _, n := range v.kinds {
		for name, s := range v.running[n] {
			v.running[n][name] = v.become(s, "healthy", healthy)
			if want := sumOf(v.shelf.files[path.Base(s.DeployURL)]); v.running[n][name].SHA256 != want {
				t.Errorf("%s on %s is made of %q, want %q", name, n.id(), v.running[n][name].SHA256, want)
			}
			if got := v.turns(since, &muster.HealthFilter{ServiceID: &s.ID}); !slices.Equal(got, []string{"service UNKNOWN", "service HEALTHY"}) {
				t.Errorf("%s on %s was deployed by the changes of health %q", name, n.id(), got)
			}
		}
	}
}

// answer is what a service answers, as its last line.
func (v *town) answer(by func(script string) *exec.Cmd, addr string, s *client.Service) string {
	out, err := by(fmt.Sprintf(`printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 5 %s %d | tail -n 1`, addr, s.Publish.Port)).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// reachAll reaches each service by its published port: from another host, its node, and its instance.
func (v *town) reachAll() {
	v.t.Helper()
	for _, n := range v.kinds {
		for name, s := range v.running[n] {
			want := map[string]string{"site": sitePage}[name]
			if want == "" {
				want = name
			}
			on := func(of hostNode) func(string) *exec.Cmd {
				return func(script string) *exec.Cmd { return of.on("busybox", "sh", "-c", script) }
			}
			inside := func(script string) *exec.Cmd { return n.within(*v.in[n].PID, script) }
			for from, got := range map[string]string{
				"another host":             v.answer(on(v.light[1]), v.addr[n], s),
				"its node, by its address": v.answer(on(n), v.addr[n], s),
				"its node, by loopback":    v.answer(on(n), "127.0.0.1", s),
				"its own instance":         v.answer(inside, v.addr[n], s),
			} {
				if got != want {
					v.t.Errorf("%s on %s answers %q to %s, want %q", name, n.id(), got, from, want)
				}
			}
		}
	}
}

// noMore compares each service's process with the first one of its instance.
func (v *town) noMore(t *testing.T) {
	status := func(n hostNode, pid int) string {
		out, err := n.on("grep", "-E", "^(CapBnd|NoNewPrivs|Seccomp):", fmt.Sprintf("/proc/%d/status", pid)).Output()
		if err != nil || strings.Count(string(out), "\n") != 3 {
			t.Fatalf("process %d on %s: %q, %v", pid, n.id(), out, err)
		}
		return string(out)
	}
	for _, n := range v.kinds {
		want := status(n, *v.in[n].PID)
		if !strings.Contains(want, "NoNewPrivs:\t1") || !strings.Contains(want, "Seccomp:\t2") {
			t.Errorf("the instance on %s has %q", n.id(), want)
		}
		for name, s := range v.running[n] {
			if got := status(n, *s.PID); got != want {
				t.Errorf("%s on %s has %q, its instance %q", name, n.id(), got, want)
			}
		}
	}
}

func (v *town) oneIsKilled(t *testing.T) {
	for _, n := range v.kinds {
		for _, name := range []string{"site", "program", "lone"} {
			before, since := v.running[n][name], v.now()
			if out, err := n.on("kill", "-9", strconv.Itoa(*before.PID)).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			after := v.become(before, "started again", func(s *client.Service) bool { return s.Restarts == 1 && healthy(s) })
			if *after.PID == *before.PID {
				t.Errorf("%s on %s has the same process", name, n.id())
			}
			if got := v.turns(since, &muster.HealthFilter{ServiceID: &before.ID}); !slices.Equal(got, []string{"service UNHEALTHY", "service HEALTHY"}) {
				t.Errorf("the changes of health of %s on %s were %q", name, n.id(), got)
			}
			v.running[n][name] = after
		}
		if log := v.written(v.running[n]["program"].ID); strings.Count(log, "it begins\n") != 2 {
			t.Errorf("the log on %s is %q", n.id(), log)
		}
	}
	v.reachAll()
}

// written is all that a service has written.
func (v *town) written(id muster.ServiceID) string {
	v.t.Helper()
	var all strings.Builder
	err := v.api.ServiceLogs(v.t.Context(), id, client.LogOptions{}, func(p muster.LogPiece) error {
		all.WriteString(p.Text)
		return nil
	})
	if err != nil {
		v.t.Fatal(err)
	}
	return all.String()
}

// ask sends a request to a service's published port from the server's host.
func (v *town) ask(n hostNode, method, path string) string {
	v.t.Helper()
	transport := v.net.transport(hostServer)
	defer transport.CloseIdleConnections()
	url := fmt.Sprintf("http://%s:%d%s", v.addr[n], v.running[n]["program"].Publish.Port, path)
	request, err := http.NewRequestWithContext(v.t.Context(), method, url, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		v.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		v.t.Fatalf("%s %s: %s, %v: %s", method, path, answer.Status, err, body)
	}
	return strings.TrimSpace(string(body))
}

func (v *town) checkFails(t *testing.T) {
	for _, n := range v.kinds {
		s, since := v.running[n]["program"], v.now()
		v.ask(n, http.MethodPost, "/break")
		sick := v.become(s, "unhealthy", func(s *client.Service) bool { return s.Health == muster.HealthBad })
		if failed, err := strconv.Atoi(v.ask(n, http.MethodGet, "/failed")); err != nil || failed < 3 {
			t.Errorf("on %s it is UNHEALTHY after %d failures, %v, want 3", n.id(), failed, err)
		}
		r := sick.CheckResults
		if len(r) != 1 || r[0].Status != muster.CheckCritical || !strings.Contains(r[0].Output, "503") || r[0].Since == nil {
			t.Errorf("on %s its checks found %+v", n.id(), r)
		}
		if sick.Status != muster.ServiceRunning || sick.UnhealthyBecause == nil || !strings.Contains(sick.UnhealthyBecause.Reason, "its check health is CRITICAL") {
			t.Errorf("on %s it is %s because of %+v", n.id(), sick.Status, sick.UnhealthyBecause)
		}
		v.ask(n, http.MethodPost, "/mend")
		well := v.become(s, "healthy", healthy)
		if *well.PID != *s.PID || well.UnhealthyBecause != nil {
			t.Errorf("on %s it is %+v", n.id(), well)
		}
		if got := v.turns(since, &muster.HealthFilter{ServiceID: &s.ID}); !slices.Equal(got, []string{"service UNHEALTHY", "service HEALTHY"}) {
			t.Errorf("on %s the changes of health were %q", n.id(), got)
		}
	}
}
