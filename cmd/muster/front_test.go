package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// followsWithin is how long after a change of health the load balancers are told at the latest.
const followsWithin = 2 * time.Second

// front are web services on two hosts, behind load balancers whose configurations are rendered from the discovery feed.
type front struct {
	*proxies
	services map[string]*client.Service // by their names, of those that were deployed and not taken away for good
	slowest  time.Duration              // that the load balancers took to be told
}

func newFront(t *testing.T) *front {
	t.Helper()
	return &front{proxies: newProxies(t), services: map[string]*client.Service{}}
}

// deploy deploys web services that say their names, each into an instance of its own, and waits until they are healthy.
func (f *front) deploy(n *lightNode, names ...string) {
	f.t.Helper()
	id, size, drain := n.id(), muster.Nano, 3*time.Second
	for _, name := range names {
		page := fmt.Sprintf("mkdir -p /tmp/w && echo %s >/tmp/w/index.html && echo muster_test_up 1 >/tmp/w/metrics && exec httpd -f -p 8080 -h /tmp/w", name)
		s, err := f.api.DeployService(f.t.Context(), muster.DeployServiceInput{
			Type: &size, NodeID: &id, Name: name, Command: []string{"sh", "-c", page}, Port: 8080,
			Publish: &muster.Published{Protocol: muster.TCP}, Restart: &muster.RestartPolicy{When: muster.RestartNever},
			Checks: []muster.Check{{Name: "web", Kind: muster.HTTPCheck, Path: "/", Interval: time.Second}}, DrainFor: &drain,
			RegisterWhenStable: []muster.RegistrationSpec{
				{Cluster: "prod", Protocol: "http", Service: "web", Annotations: muster.Map{"prometheus.io/scrape": "true"}},
			},
		})
		if err != nil {
			f.t.Fatal(err)
		}
		f.services[name] = s
	}
	for _, name := range names {
		f.become(name, "healthy", healthy)
	}
}

// become waits until a service is as wanted.
func (f *front) become(name, what string, ok func(*client.Service) bool) {
	f.t.Helper()
	until(f.t, name+" is "+what, func() bool {
		s, err := f.api.Service(f.t.Context(), f.services[name].ID)
		if err == nil {
			f.services[name] = s
		}
		return err == nil && ok(s)
	})
}

// at is where a service is reached.
func (f *front) at(name string) string {
	s := f.services[name]
	return fmt.Sprintf("%s:%d", s.Node.Addr, s.Publish.Port)
}

// serve waits until the rendered files have these services and no others, and returns when that was seen.
func (f *front) serve(names ...string) time.Time {
	f.t.Helper()
	var want []string
	for _, name := range names {
		want = append(want, f.at(name))
	}
	slices.Sort(want)
	until(f.t, fmt.Sprint("the load balancers are told of ", names), func() bool {
		return !slices.ContainsFunc(f.all, func(p *proxy) bool { return !slices.Equal(p.servers(), want) })
	})
	return time.Now()
}

// answered waits until exactly these services answer through each load balancer.
func (f *front) answered(names ...string) {
	f.t.Helper()
	slices.Sort(names)
	for _, p := range f.all {
		until(f.t, fmt.Sprint("requests to ", p.name, " are answered by ", names), func() bool {
			seen := map[string]bool{}
			for range 4 * len(names) {
				name, err := f.ask(p.url)
				if err != nil {
					return false
				}
				seen[strings.TrimSpace(name)] = true
			}
			return slices.Equal(slices.Sorted(maps.Keys(seen)), names)
		})
	}
}

// follow does something after which the load balancers are told of these services and no others, soon after the health
// of the named one has changed.
func (f *front) follow(what, name string, do func() error, names ...string) {
	f.t.Helper()
	info, err := f.api.ServerInfo(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	if err := do(); err != nil {
		f.t.Fatalf("%s: %v", what, err)
	}
	told := f.serve(names...)
	took := told.Sub(f.turned(info.Cursor, name))
	f.slowest = max(f.slowest, took)
	f.t.Logf("%s: followed after %s", what, took)
	if took > followsWithin {
		f.t.Errorf("%s: the load balancers were told %s after the change of health", what, took)
	}
}

// turned is when the health of a service changed last since a cursor.
func (f *front) turned(since, name string) (at time.Time) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	synced := errors.New("synced")
	id := f.services[name].ID
	err := f.api.WatchHealth(ctx, &muster.HealthFilter{ServiceID: &id}, client.WatchOptions{Since: since}, func(e client.Event) error {
		switch {
		case e.Type == muster.EventSynced:
			return synced
		case e.Type == muster.EventChange && e.Kind == muster.KindService:
			at = e.At
		}
		return nil
	})
	if !errors.Is(err, synced) || at.IsZero() {
		f.t.Fatalf("the health of %s did not change: %v", name, err)
	}
	return at
}

// kill kills a service's process.
func (f *front) kill(name string) error { return syscall.Kill(f.pid(name), syscall.SIGKILL) }

func (f *front) pid(name string) int {
	f.t.Helper()
	s := f.services[name]
	if s.PID == nil {
		f.t.Fatalf("%s is %s without a process", name, s.Status)
	}
	return *s.PID
}

// leave orders the end of a service. When the load balancers are told it still serves, and it ends afterwards.
func (f *front) leave(what, name string, order func(id muster.ServiceID, in muster.InstanceID) error, names ...string) {
	f.t.Helper()
	s, pid := f.services[name], f.pid(name)
	f.follow(what, name, func() error { return order(s.ID, s.InstanceID) }, names...)
	if err := syscall.Kill(pid, 0); err != nil {
		f.t.Errorf("%s: when the load balancers are told its process is gone: %v", what, err)
	}
	if answer, err := f.ask("http://" + f.at(name) + "/"); err != nil || answer != name+"\n" {
		f.t.Errorf("%s: when the load balancers are told it answers %q, %v", what, answer, err)
	}
	f.leaving[pid] = what
}

// left waits until all that was ordered to end has ended.
func (f *front) left() {
	f.t.Helper()
	for pid, what := range f.leaving {
		until(f.t, what+": its process has ended", func() bool { return syscall.Kill(pid, 0) != nil })
	}
}

// TestFront has load balancers follow the discovery feed, and Prometheus scrape what there is, while services and
// instances on two hosts are killed, stopped, restarted, ended and deployed. What muster ends costs no request.
func TestFront(t *testing.T) {
	f := newFront(t)
	one, two := f.light[0], f.light[1]
	f.deploy(one, "a", "c", "e")
	f.deploy(two, "b", "d")
	f.start()
	f.serve("a", "b", "c", "d", "e")
	f.answered("a", "b", "c", "d", "e")
	f.scraped("a", "b", "c", "d", "e")
	f.agentStartsAgain()

	stop := f.traffic()
	f.follow("a process is killed", "b", func() error { return f.kill("b") }, "a", "c", "d", "e")
	f.answered("a", "c", "d", "e")
	sent, failed := stop()
	t.Logf("%d requests while a process was killed, of which %d failed", sent, len(failed))
	f.follow("a service that was killed is restarted", "b", func() error { return f.restart("b") }, "a", "b", "c", "d", "e")
	f.answered("a", "b", "c", "d", "e")

	stop = f.traffic()
	f.ordered(one, two)
	sent, failed = stop()
	if len(failed) > 0 || sent < 500 {
		t.Errorf("of %d requests %d failed while muster ended services: %.500q", sent, len(failed), failed)
	}
	t.Logf("%d requests while muster ended services; the load balancers were told %s after a change of health at the latest", sent, f.slowest)
	f.scraped("d")
	f.left()
}

// restart restarts a service and waits until it is healthy.
func (f *front) restart(name string) error {
	f.t.Helper()
	s, err := f.api.RestartService(f.t.Context(), f.services[name].ID)
	if err == nil {
		f.become(name, "healthy again", func(now *client.Service) bool { return now.Generation == s.Generation && healthy(now) })
	}
	return err
}

// ordered ends one after the other in each way that there is, with an agent that is killed in between.
func (f *front) ordered(one, two *lightNode) {
	ctx := f.t.Context()
	f.leave("a service is stopped", "a", func(id muster.ServiceID, _ muster.InstanceID) error {
		_, err := f.api.StopService(ctx, id)
		return err
	}, "b", "c", "d", "e")
	f.leave("a service is restarted", "d", func(id muster.ServiceID, _ muster.InstanceID) error {
		_, err := f.api.RestartService(ctx, id)
		return err
	}, "b", "c", "e")
	f.leave("an instance is restarted", "e", func(_ muster.ServiceID, in muster.InstanceID) error {
		_, err := f.api.RestartInstance(ctx, in)
		return err
	}, "b", "c")
	f.become("d", "healthy again", healthy)
	f.become("e", "healthy again", healthy)
	f.serve("b", "c", "d", "e")
	f.leave("an instance is stopped", "b", func(_ muster.ServiceID, in muster.InstanceID) error {
		_, err := f.api.StopInstance(ctx, in)
		return err
	}, "c", "d", "e")
	two.killed(f.t) // it drains what the one before it began to
	f.leave("an instance is terminated", "c", func(_ muster.ServiceID, in muster.InstanceID) error {
		_, err := f.api.TerminateInstance(ctx, in)
		return err
	}, "d", "e")
	f.follow("a service is deployed", "f", func() error { f.deploy(two, "f"); return nil }, "d", "e", "f")
	f.answered("d", "e", "f")
	f.leave("a node is drained", "e", func(muster.ServiceID, muster.InstanceID) error {
		_, err := f.api.DrainNode(ctx, muster.DrainNodeInput{ID: one.id(), Deadline: new(time.Duration)})
		return err
	}, "d", "f")
	f.leave("a service is removed", "f", func(id muster.ServiceID, _ muster.InstanceID) error {
		_, err := f.api.RemoveService(ctx, id)
		return err
	}, "d")
	f.left()
	f.answered("d")
}

// killed kills a node's agent, and starts another one.
func (l *lightNode) killed(t *testing.T) {
	t.Helper()
	node := l.await(l, 1)
	_ = l.agent.Process.Kill()
	_ = l.agent.Wait()
	l.start(t, "muster")
	l.await(l, node.Incarnation+1)
}

// agentStartsAgain kills an agent, and another start of it goes on with its services: none of them leaves the feed.
func (f *front) agentStartsAgain() {
	f.t.Helper()
	path := filepath.Join(f.dir, "changes")
	changes, err := os.Create(path)
	if err != nil {
		f.t.Fatal(err)
	}
	defer changes.Close()
	watch := f.beside("muster", "registration", "watch", "-o", "json")
	watch.Stdout = changes
	if err := watch.Start(); err != nil {
		f.t.Fatal(err)
	}
	defer func() {
		_ = watch.Process.Signal(os.Interrupt)
		_ = watch.Wait()
	}()
	seen := func() string {
		b, _ := os.ReadFile(path)
		return string(b)
	}
	until(f.t, "the feed is watched", func() bool { return strings.Contains(seen(), "SYNCED") })
	f.light[0].killed(f.t)
	began := time.Now()
	for _, name := range []string{"a", "c", "e"} {
		f.become(name, "checked again", func(s *client.Service) bool { return len(s.CheckResults) == 1 && s.CheckResults[0].At.After(began) })
	}
	// A change that comes after all that.
	port := 1
	last := muster.RegisterInput{Cluster: "test", Protocol: "tcp", Service: "last", Address: "192.0.2.1", Port: &port}
	if _, err := f.api.Register(f.t.Context(), last); err != nil {
		f.t.Fatal(err)
	}
	until(f.t, "the last one is registered", func() bool { return strings.Contains(seen(), last.Service) })
	if got := seen(); strings.Contains(got, "REMOVE") {
		f.t.Errorf("when the agent started again the feed lost entries: %s", got)
	}
}
