package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// front is an nginx before web services in instances, whose upstream is rendered from the discovery feed.
type front struct {
	*cloud
	dir        string
	upstream   string // the file that is rendered
	get        *http.Client
	prometheus *exec.Cmd         // nil: it was not started yet
	ids        map[string]string // of the services, by their names
	port       map[string]string // of the node that leads there, by their names
}

const frontConf = `daemon off;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/t1; proxy_temp_path %[1]s/t2; fastcgi_temp_path %[1]s/t3; uwsgi_temp_path %[1]s/t4; scgi_temp_path %[1]s/t5;
	include %[1]s/upstreams.conf;
	server {
		listen 127.0.0.1:8088;
		location / {
			proxy_pass http://web;
			proxy_next_upstream off; # what is asked of a server that is gone fails, and is counted
		}
	}
}
`

func newFront(t *testing.T) *front {
	t.Helper()
	c := newCloud(t)
	f := &front{
		cloud: c, dir: t.TempDir(), ids: map[string]string{}, port: map[string]string{},
		get: &http.Client{Transport: transportIn("/run/netns/" + c.netns), Timeout: 10 * time.Second},
	}
	t.Cleanup(f.get.CloseIdleConnections)
	f.upstream = filepath.Join(f.dir, "upstreams.conf")
	if err := os.WriteFile(filepath.Join(f.dir, "nginx.conf"), fmt.Appendf(nil, frontConf, f.dir), 0o644); err != nil {
		t.Fatal(err)
	}
	return f
}

// deploy deploys a web service that says its name, into an instance of its own.
func (f *front) deploy(name string) {
	f.t.Helper()
	page := fmt.Sprintf("mkdir -p /tmp/w && echo %s >/tmp/w/index.html && echo muster_test_up 1 >/tmp/w/metrics && exec httpd -f -p 8080 -h /tmp/w", name)
	out := f.muster("service", "deploy", name, "--type", "NANO", "--port", "8080", "--publish", "any", "--restart", "never", "--drain-for", "3s",
		"--check", "kind=http path=/ interval=1s", "--register",
		"cluster=prod protocol=http service=web annotation.prometheus.io/scrape=true", "--wait", "-o", "json", "--", "sh", "-c", page)
	var s struct {
		ID      string
		Publish struct{ Port int }
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		f.t.Fatal(err)
	}
	f.ids[name], f.port[name] = s.ID, ":"+strconv.Itoa(s.Publish.Port)
}

// run starts a program of the front's, which ends with the test.
func (f *front) run(name string, args ...string) *exec.Cmd {
	f.t.Helper()
	process := f.inside(append([]string{name}, args...)...)
	process.Stdout, process.Stderr = f.log, f.log
	if err := process.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	})
	return process
}

// serves waits until the rendered upstream has these services and no others.
func (f *front) serves(names ...string) {
	f.t.Helper()
	f.until(fmt.Sprint("nginx is told of ", names), func() bool {
		b, _ := os.ReadFile(f.upstream)
		for _, name := range names {
			if !strings.Contains(string(b), f.port[name]+";") {
				return false
			}
		}
		return strings.Count(string(b), "server ") == len(names)
	})
}

// answersBy waits until exactly these services answer through nginx.
func (f *front) answersBy(names ...string) {
	f.t.Helper()
	f.until(fmt.Sprint("requests are answered by ", names), func() bool {
		seen := map[string]bool{}
		for range 4 * len(names) {
			name, err := f.ask("http://127.0.0.1:8088/")
			if err != nil {
				return false
			}
			seen[strings.TrimSpace(name)] = true
		}
		for _, name := range names {
			if !seen[name] {
				return false
			}
		}
		return len(seen) == len(names)
	})
}

func (f *front) ask(url string) (string, error) {
	answer, err := f.get.Get(url)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return string(body), err
}

// traffic sends requests one after the other from some callers, until it is told to stop, and returns how many
// there were and what failed.
func (f *front) traffic() (stop func() (int64, []string)) {
	var sent atomic.Int64
	end, failed, ended := make(chan struct{}), make(chan string, 1000), make(chan struct{}, 4)
	for range cap(ended) {
		go func() {
			defer func() { ended <- struct{}{} }()
			for {
				select {
				case <-end:
					return
				default:
				}
				sent.Add(1)
				if _, err := f.ask("http://127.0.0.1:8088/"); err != nil && len(failed) < cap(failed)-cap(ended) {
					failed <- err.Error()
				}
			}
		}()
	}
	return func() (int64, []string) {
		close(end)
		for range cap(ended) {
			<-ended
		}
		close(failed)
		var all []string
		for text := range failed {
			all = append(all, text)
		}
		return sent.Load(), all
	}
}

// TestFront has nginx follow the discovery feed while services are killed, stopped and deployed, and Prometheus
// scrape what there is.
func TestFront(t *testing.T) {
	f := newFront(t)
	for _, name := range []string{"one", "two", "three"} {
		f.deploy(name)
	}
	template, err := filepath.Abs("../../examples/templates/nginx.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(f.dir, "nginx.conf")
	f.until("the three are registered", func() bool {
		return strings.Count(f.muster("registration", "query", "--service", "web"), " web ") == 3
	})
	f.muster("render", "-t", template, "-o", f.upstream, "--check", "nginx -t -c "+conf)
	f.run("nginx", "-c", conf)
	f.answersBy("one", "two", "three")
	f.run("muster", "render", "--watch", "-t", template, "-o", f.upstream, "--quiet", "100ms",
		"--check", "nginx -t -c "+conf, "--reload", "nginx -s reload -c "+conf)
	f.scraped("one", "two", "three")

	f.agentStartsAgain()
	f.killed("two")
	f.serves("one", "three")
	f.answersBy("one", "three")
	f.muster("service", "restart", f.ids["two"], "--wait")
	f.serves("one", "two", "three")
	f.answersBy("one", "two", "three")

	stop := f.traffic()
	f.stoppedInOrder("three")
	f.deploy("four")
	f.serves("one", "two", "four")
	f.muster("service", "restart", f.ids["two"], "--wait")
	f.serves("one", "two", "four")
	f.answersBy("one", "two", "four")
	f.muster("service", "remove", f.ids["one"], "--wait")
	f.serves("two", "four")
	f.answersBy("two", "four")
	sent, failed := stop()
	if len(failed) > 0 || sent < 100 {
		t.Errorf("of %d requests %d failed while services were stopped: %.300q", sent, len(failed), failed)
	}
	t.Logf("%d requests while services were stopped, deployed and removed", sent)
	f.scraped("two", "four")
}

// killed kills a service's process.
func (f *front) killed(name string) {
	f.t.Helper()
	s := f.service(name)
	if s.PID == 0 {
		f.t.Fatalf("%s is %s without a process", name, s.Status)
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		f.t.Fatal(err)
	}
}

// agentStartsAgain kills the agent, and another start of it goes on with its services: none of them leaves the feed.
func (f *front) agentStartsAgain() {
	f.t.Helper()
	path := filepath.Join(f.dir, "changes")
	changes, err := os.Create(path)
	if err != nil {
		f.t.Fatal(err)
	}
	defer changes.Close()
	watch := f.inside("muster", "registration", "watch", "-o", "json")
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
	f.until("the feed is watched", func() bool { return strings.Contains(seen(), "SYNCED") })
	_ = f.agent.Process.Kill()
	_ = f.agent.Wait()
	f.startAgent()
	began := time.Now()
	f.until("each is checked again", func() bool {
		for name := range f.ids {
			if s := f.service(name); len(s.CheckResults) != 1 || !s.CheckResults[0].At.After(began) {
				return false
			}
		}
		return true
	})
	f.deploy("last") // a change that comes after all that
	f.until("the last one is registered", func() bool { return strings.Contains(seen(), f.port["last"][1:]) })
	if got := seen(); strings.Contains(got, "REMOVE") {
		f.t.Errorf("when the agent started again the feed lost entries: %s", got)
	}
	f.muster("service", "remove", f.ids["last"])
	delete(f.ids, "last")
}

// stoppedInOrder stops a service: nginx is told while it still runs, and then it stops.
func (f *front) stoppedInOrder(name string) {
	f.t.Helper()
	f.muster("service", "stop", f.ids[name])
	f.serves(slices.DeleteFunc(slices.Collect(maps.Keys(f.ids)), func(other string) bool { return other == name })...)
	if s := f.service(name); s.Status != "STOPPING" {
		f.t.Errorf("when nginx is told it is %s", s.Status)
	}
	f.until(name+" is stopped", func() bool { return f.service(name).Status == "STOPPED" })
}

// shownService is what the test looks at of a service.
type shownService struct {
	Status       string
	PID          int
	CheckResults []struct{ At time.Time }
}

func (f *front) service(name string) (s shownService) {
	f.t.Helper()
	if err := json.Unmarshal([]byte(f.muster("service", "show", f.ids[name], "-o", "json")), &s); err != nil {
		f.t.Fatal(err)
	}
	return s
}
