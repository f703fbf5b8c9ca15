package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/client"
)

// site is a node with its server, whose agent can be killed and started again.
type site interface {
	reportTo(t *testing.T)
	startAgent() // and wait until it has registered
	killAgent()
	agentPID() int
	endsWithSupervisor() bool // does a machine
	stateDir() string
	namespaces() string // the directory of the network namespaces
	veths() int
	mounts() int // of the state directory
	logEnd()
}

func newKiller(t *testing.T) *killer {
	t.Helper()
	c := newCloud(t)
	k := &killer{site: c, t: t, gate: newGate(t, t.TempDir()), api: c.client(), marker: fmt.Sprint("muster-kill-", os.Getpid()), loops: true}
	c.env = []string{failpoint.Variable + "=" + k.gate.path}
	c.flags = []string{"--stop-grace", "2s"}
	k.killAgent()
	c.startAgent()
	return k
}

func (c *cloud) reportTo(t *testing.T)    { c.t = t }
func (c *cloud) agentPID() int            { return c.agent.Process.Pid }
func (c *cloud) endsWithSupervisor() bool { return false }
func (c *cloud) stateDir() string         { return filepath.Join(c.dir, "agent") }
func (c *cloud) namespaces() string       { return "/run/netns" }

func (c *cloud) killAgent() {
	c.t.Helper()
	killHard(c.t, c.agent.Process.Pid)
	_ = c.agent.Wait() // killed
}

func (c *cloud) logEnd() {
	log, _ := os.ReadFile(c.log.Name())
	c.t.Logf("the log ends with\n%s", log[max(0, len(log)-3000):])
}

func (c *cloud) veths() int {
	out, _ := exec.Command("ip", "-n", c.netns, "-br", "link", "show", "type", "veth").Output()
	return strings.Count(string(out), "\n")
}

func (c *cloud) mounts() int {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	return strings.Count(string(text), c.dir)
}

// client returns one that connects from inside the cloud's network.
func (c *cloud) client() *client.Client {
	return clientIn(c.t, "/run/netns/"+c.netns, firstKey(c.t, filepath.Join(c.dir, "server")))
}

// firstKey is the access key of a server's first start.
func firstKey(t testing.TB, dataDir string) string {
	t.Helper()
	var text []byte
	until(t, "the server has made its first key", func() (ok bool) {
		var err error
		text, err = os.ReadFile(filepath.Join(dataDir, "admin.key"))
		return err == nil
	})
	return strings.TrimSpace(string(text))
}

// clientIn returns one that connects from inside a network namespace to the usual port there.
func clientIn(t testing.TB, namespace, key string) *client.Client {
	t.Helper()
	api, err := client.New(client.Options{Key: key, Transport: transportIn(namespace)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	return api
}

// transportIn connects from inside a network namespace.
func transportIn(namespace string) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		back, err := setns(namespace)
		if err != nil {
			return nil, err
		}
		defer back()
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
}

// setns moves the calling thread to a network namespace until the returned function is called.
func setns(path string) (back func(), err error) {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	to, err := os.Open(path)
	if err == nil {
		defer to.Close()
		err = unix.Setns(int(to.Fd()), unix.CLONE_NEWNET)
	}
	if err != nil {
		_ = own.Close()
		return nil, err
	}
	return func() {
		defer own.Close()
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
	}, nil
}

// unitSite is a host of systemd's.
type unitSite struct {
	node
	t      *testing.T
	gate   *gate
	starts int // of the agent
}

func newUnitKiller(t *testing.T) *killer {
	t.Helper()
	n := newNode(t)
	n.muster(t, "image", "build-minimal", "--state-dir", "/var/tmp/agent")
	n.Run(t, "systemd-run", "--quiet", "--unit=server", "--service-type=notify", "/usr/local/bin/muster", "server", "--data-dir", "/var/tmp/server")
	s := &unitSite{node: n, t: t, gate: newGate(t, filepath.Join(n.Dir, "var-tmp"))}
	s.startAgent()
	key := strings.TrimSpace(n.Run(t, "cat", "/var/tmp/server/admin.key"))
	return &killer{site: s, t: t, gate: s.gate, api: clientIn(t, fmt.Sprintf("/proc/%d/ns/net", n.PID()), key), marker: fmt.Sprint("muster-kill-unit-", os.Getpid())}
}

func (s *unitSite) startAgent() {
	s.t.Helper()
	s.starts++
	s.Run(s.t, "systemd-run", "--quiet", "--unit=agent-"+strconv.Itoa(s.starts), "--service-type=notify", "--property=Delegate=yes", "--property=KillMode=process",
		"--setenv="+failpoint.Variable+"=/var/tmp/gate", "/usr/local/bin/muster", "agent", "--launcher", "systemd", "--state-dir", "/var/tmp/agent", "--stop-grace", "2s", "--cpus", "8", "--memory", "8192")
}

func (s *unitSite) agentPID() int {
	s.t.Helper()
	pids := pidsOf(func(words []string) bool {
		return len(words) > 1 && words[0] == "/usr/local/bin/muster" && words[1] == "agent"
	})
	pids = slices.DeleteFunc(pids, func(pid int) bool { return !sameNamespace(pid, s.PID()) })
	if len(pids) != 1 {
		s.t.Fatalf("%d agents run", len(pids))
	}
	return pids[0]
}

func sameNamespace(pids ...int) bool {
	spaces := map[string]bool{}
	for _, pid := range pids {
		space, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		spaces[space] = true
	}
	return len(spaces) == 1
}

func (s *unitSite) killAgent() {
	s.t.Helper()
	killHard(s.t, s.agentPID())
	until(s.t, "the agent has ended", func() bool {
		out, _ := s.Try(s.t.Context(), "systemctl", "is-active", "agent-"+strconv.Itoa(s.starts))
		return strings.TrimSpace(out) == "failed"
	})
}

func (s *unitSite) reportTo(t *testing.T)    { s.t = t }
func (s *unitSite) endsWithSupervisor() bool { return true }
func (s *unitSite) stateDir() string         { return filepath.Join(s.Dir, "var-tmp/agent") }
func (s *unitSite) namespaces() string       { return fmt.Sprintf("/proc/%d/root/run/netns", s.PID()) }

func (s *unitSite) veths() int {
	out, _ := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", s.PID()), "ip", "-br", "link", "show", "type", "veth").Output()
	return strings.Count(string(out), "\n")
}

func (s *unitSite) mounts() int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.PID()))
	return strings.Count(string(text), "/var/tmp/agent")
}

func (s *unitSite) logEnd() {
	s.t.Log(s.Run(s.t, "journalctl", "-q", "-o", "cat", "-n", "40", "_COMM=muster"))
}
