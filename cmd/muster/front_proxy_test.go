package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// proxy is a load balancer, and the file that is rendered for it.
type proxy struct {
	name, url string
	file      string
	template  string
	check     string
	process   *exec.Cmd // nil before it is started
}

// servers are where its file says that it finds the service, sorted.
func (p *proxy) servers() (all []string) {
	text, _ := os.ReadFile(p.file)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "    server ") {
			words := strings.Fields(line)
			all = append(all, strings.TrimSuffix(words[len(words)-1], ";"))
		}
	}
	slices.Sort(all)
	return all
}

// proxies are two hosts, and beside the server an nginx and an HAProxy, which send each request on once: what is asked
// of a server that is gone fails, and is counted.
type proxies struct {
	*hosts
	dir        string
	nginx      *proxy
	haproxy    *proxy
	all        []*proxy
	get        *http.Client
	prometheus *exec.Cmd      // nil: it was not started yet
	leaving    map[int]string // the processes that were ordered to end, and how
}

const nginxConf = `daemon off;
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
			proxy_next_upstream off;
		}
	}
}
`

func newProxies(t *testing.T) *proxies {
	t.Helper()
	h := newLightHosts(t)
	p := &proxies{hosts: h, dir: t.TempDir(), get: &http.Client{Transport: h.net.transport(hostServer), Timeout: 10 * time.Second}, leaving: map[int]string{}}
	t.Cleanup(p.get.CloseIdleConnections)
	conf := p.write("nginx.conf", fmt.Sprintf(nginxConf, p.dir))
	p.nginx = &proxy{
		name: "nginx", url: "http://127.0.0.1:8088/", file: filepath.Join(p.dir, "upstreams.conf"), check: "nginx -t -c " + conf,
		template: p.write("nginx.tmpl", example(t, "nginx.tmpl")),
	}
	once := strings.NewReplacer("\ndefaults\n", "\ndefaults\n    retries 0\n", "maxconn 10000", "maxconn 1000").Replace(example(t, "haproxy.tmpl"))
	p.haproxy = &proxy{
		name: "HAProxy", url: "http://127.0.0.1:8080/", file: filepath.Join(p.dir, "haproxy.cfg"), check: "haproxy -c -f {}",
		template: p.write("haproxy.tmpl", once),
	}
	p.all = []*proxy{p.nginx, p.haproxy}
	return p
}

// example is one of the templates that are in examples.
func example(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../examples/templates", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (p *proxies) write(name, text string) (path string) {
	p.t.Helper()
	path = filepath.Join(p.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// start renders the files, starts the load balancers with them, and has them follow.
func (p *proxies) start() {
	p.t.Helper()
	for _, one := range p.all {
		p.mustCLI("render", "-t", one.template, "-o", one.file, "--check", one.check)
	}
	conf := filepath.Join(p.dir, "nginx.conf")
	p.nginx.process = p.run("nginx", "-c", conf)
	p.haproxy.process = p.run("haproxy", "-W", "-f", p.haproxy.file)
	reloads := map[*proxy]string{p.nginx: "nginx -s reload -c " + conf, p.haproxy: fmt.Sprint("kill -USR2 ", p.haproxy.process.Process.Pid)}
	config := "quiet: 100ms\ntargets:\n"
	for _, one := range p.all {
		config += fmt.Sprintf("- {template: %q, output: %q, check: %q, reload: %q}\n", one.template, one.file, one.check, reloads[one])
	}
	p.run("muster", "render", "--watch", "--config", p.write("render.yaml", config))
}

// run starts a program beside the server, which ends with the test.
func (p *proxies) run(name string, args ...string) *exec.Cmd {
	p.t.Helper()
	process := p.beside(name, args...)
	process.Stdout, process.Stderr = p.log, p.log
	if err := process.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	})
	return process
}

func (p *proxies) ask(url string) (string, error) {
	answer, err := p.get.Get(url)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, answer.Status, body)
	}
	return string(body), err
}

// requestPace is how often a caller sends a request, at most: the machine has more to do.
const requestPace = 4 * time.Millisecond

// traffic sends requests one after the other from some callers to each load balancer, until it is told to stop, and
// returns how many there were and what failed.
func (p *proxies) traffic() (stop func() (int64, []string)) {
	var sent atomic.Int64
	end, failed, ended := make(chan struct{}), make(chan string, 10000), make(chan struct{}, 4)
	for k := range cap(ended) {
		url := p.all[k%len(p.all)].url
		go func() {
			defer func() { ended <- struct{}{} }()
			pace := time.NewTicker(requestPace)
			defer pace.Stop()
			for {
				select {
				case <-end:
					return
				case <-pace.C:
				}
				sent.Add(1)
				if _, err := p.ask(url); err != nil && len(failed) < cap(failed)-cap(ended) {
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
