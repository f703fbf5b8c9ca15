package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// hosts are a server and three nodes on one switch: two light ones, whose agents launch directly in network namespaces
// of this machine, and one that systemd runs, where instances are units.
type hosts struct {
	t     *testing.T
	net   *network
	dir   string
	log   *os.File
	api   *client.Client
	light []*lightNode
	heavy *heavyNode // nil: there is none
	names []string   // of the machines that have run
}

// heavyHost is the number of the host that systemd runs.
const heavyHost = 3

// hostNode is a node of either kind.
type hostNode interface {
	id() string
	// on makes a command that runs on the host, in its network.
	on(args ...string) *exec.Cmd
	// within makes a command that runs in an instance there.
	within(pid int, script string) *exec.Cmd
	// upgrade stops the agent and starts one from another file.
	upgrade(t *testing.T)
}

func newHosts(t *testing.T) *hosts {
	t.Helper()
	h := newHostServer(t)
	whoAmI(t, h.net.host(hostServer), addressOf(hostServer))
	h.heavy = &heavyNode{node: newNode(t)}
	h.startLight()
	h.heavy.start(t, h)
	for _, n := range h.nodes() {
		h.await(n, 1)
	}
	return h
}

// newLightHosts is newHosts without the host that systemd runs.
func newLightHosts(t *testing.T) *hosts {
	t.Helper()
	h := newHostServer(t)
	h.startLight()
	for _, n := range h.nodes() {
		h.await(n, 1)
	}
	return h
}

// newHostServer is the switch and the server.
func newHostServer(t *testing.T) *hosts {
	t.Helper()
	h := &hosts{t: t, net: newNetwork(t, heavyHost-1), dir: t.TempDir(), log: newLogs(t)}
	sweepInstances()
	h.net.start(hostServer, h.log, "server", "--data-dir", filepath.Join(h.dir, "server"), "--listen", "0.0.0.0:9000",
		"--allowed-hosts", addressOf(hostServer), "--heartbeat-interval", "1s")
	key := firstKey(t, filepath.Join(h.dir, "server"))
	api, err := client.New(client.Options{URL: "http://127.0.0.1:9000", Key: key, Transport: h.net.transport(hostServer)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	h.api = api
	until(t, "the server answers", func() bool { _, err := api.ServerInfo(t.Context()); return err == nil })
	return h
}

// startLight starts the agents of the light nodes. All that is on the nodes ends before what was made until now.
func (h *hosts) startLight() {
	h.t.Helper()
	h.t.Cleanup(h.close)
	for k := 1; k < heavyHost; k++ {
		l := &lightNode{hosts: h, k: k, state: filepath.Join(h.dir, fmt.Sprint("light", k)), join: h.invite()}
		command(h.t, "muster", "image", "build-minimal", "--state-dir", l.state)
		h.light = append(h.light, l)
		l.start(h.t, "muster")
	}
}

// invite returns what one machine joins by.
func (h *hosts) invite() string {
	h.t.Helper()
	made, err := h.api.CreateJoinToken(h.t.Context(), muster.CreateJoinTokenInput{})
	if err != nil {
		h.t.Fatal(err)
	}
	return made.Text + "@" + addressOf(hostServer)
}

func (h *hosts) nodes() []hostNode {
	var all []hostNode
	for _, l := range h.light {
		all = append(all, l)
	}
	if h.heavy == nil {
		return all
	}
	return append(all, h.heavy)
}

// await returns when a start of a node's agent, or a later one, is registered and the node is HEALTHY.
func (h *hosts) await(n hostNode, incarnation int64) *client.Node {
	h.t.Helper()
	var node *client.Node
	until(h.t, fmt.Sprintf("node %s is HEALTHY with start %d of its agent", n.id(), incarnation), func() bool {
		var err error
		node, err = h.api.Node(h.t.Context(), n.id())
		return err == nil && node.Status == muster.Healthy && node.Incarnation >= incarnation
	})
	return node
}

// launch launches on a node and waits for a status.
func (h *hosts) launch(n hostNode, size muster.InstanceType, want muster.InstanceStatus, script string) *client.Instance {
	h.t.Helper()
	return h.settle(h.begin(n, size, script), want)
}

func (h *hosts) begin(n hostNode, size muster.InstanceType, script string) *client.Instance {
	h.t.Helper()
	id := n.id()
	in := muster.LaunchInstanceInput{Type: size, Name: "on-" + id, Image: "minimal", NodeID: &id, Command: []string{"/bin/sh", "-c", script}}
	i, err := h.api.LaunchInstance(h.t.Context(), in)
	if err != nil {
		h.t.Fatal(err)
	}
	return i
}

func (h *hosts) settle(i *client.Instance, want muster.InstanceStatus) *client.Instance {
	h.t.Helper()
	until(h.t, fmt.Sprintf("%s is %s", i.ID, want), func() bool {
		now, err := h.api.Instance(h.t.Context(), i.ID)
		if err != nil {
			return false
		}
		i = now
		if i.Status == muster.Failed && want != muster.Failed {
			h.t.Fatalf("%s on %s has failed: %s", i.ID, i.Node.ID, i.StatusReason)
		}
		return i.Status == want
	})
	h.names = append(h.names, i.Machine)
	return i
}

// close ends all of it, also after a failure, and looks for what is left of it on this machine. What is on the
// host of systemd's ends with that.
func (h *hosts) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	h.terminateAll(ctx)
	for _, l := range h.light {
		l.stop()
	}
	if left := instancesOf(h.net.id); len(left) > 0 {
		h.t.Errorf("instances are left: %s", strings.Join(left, " "))
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, h.dir) {
			h.t.Errorf("a mount is left: %s", line)
		}
	}
	for _, name := range h.names {
		if _, err := os.Stat(filepath.Join("/run/netns", name)); err == nil {
			h.t.Errorf("the network namespace %s is left", name)
		}
	}
	for _, l := range h.light {
		if left := l.left(); left != "" {
			h.t.Errorf("left on %s: %s", l.id(), left)
		}
	}
	sweepGroups(h.net.id)
}

// terminateAll ends the instances, each on its node, for as long as ctx lasts.
func (h *hosts) terminateAll(ctx context.Context) {
	for i, err := range h.api.AllInstances(ctx, nil) {
		if err != nil {
			h.t.Errorf("list what to terminate: %v", err)
			return
		}
		if _, err := h.api.TerminateInstance(ctx, i.ID); err != nil && i.Status != muster.Terminated {
			h.t.Error(err)
		}
	}
	for ctx.Err() == nil {
		all, err := h.api.Instances(ctx, &muster.InstanceFilter{Status: []muster.InstanceStatus{muster.Terminating}}, muster.PageInput{})
		if err == nil && len(all.Edges) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	h.t.Error("not every instance was terminated")
}

// lightNode is a host that is a network namespace.
type lightNode struct {
	*hosts
	k     int
	state string
	join  string
	agent *exec.Cmd
}

func (l *lightNode) id() string { return fmt.Sprint("light", l.k) }

func (l *lightNode) on(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + l.net.host(l.k)}, args...)...)
}

func (l *lightNode) within(pid int, script string) *exec.Cmd {
	return exec.Command("nsenter", "--target", strconv.Itoa(pid), "--all", "--", "/bin/sh", "-c", script)
}

func (l *lightNode) start(t *testing.T, program string) {
	t.Helper()
	conf := filepath.Join(l.dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+addressOf(hostServer)+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l.agent = l.on(program, "agent", "--id", l.id(), "--join", l.join, "--listen", addressOf(l.k)+":8080",
		"--state-dir", l.state, "--launcher", "direct", "--cgroup-prefix", l.net.id, "--cpus", "4", "--memory", "2048", "--resolv-conf", conf)
	l.agent.Stdout, l.agent.Stderr = l.log, l.log
	if err := l.agent.Start(); err != nil {
		t.Fatal(err)
	}
}

func (l *lightNode) stop() {
	if l.agent != nil {
		_ = l.agent.Process.Signal(syscall.SIGTERM)
		_ = l.agent.Wait()
		l.agent = nil
	}
}

func (l *lightNode) upgrade(t *testing.T) {
	t.Helper()
	program, err := exec.LookPath("muster")
	if err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(l.dir, "next-"+l.id(), "muster") // the test's binary goes by its name
	command(t, "install", "-D", program, next)
	l.stop()
	l.start(t, next)
}

// routes are those to the instances of other nodes.
func (l *lightNode) routes(t *testing.T) string {
	t.Helper()
	out, err := l.on("ip", "route", "show", "proto", "213").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// left tells what instances have left in the host's network.
func (l *lightNode) left() string {
	links, _ := l.on("ip", "-brief", "link", "show", "type", "veth").Output()
	tables, _ := l.on("nft", "list", "tables").Output()
	bridges, _ := l.on("ip", "-brief", "link", "show", "type", "bridge").Output()
	var left []string
	for line := range strings.Lines(string(links) + string(tables) + string(bridges)) {
		if !strings.HasPrefix(line, "eth0@") {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return strings.Join(left, "; ")
}

// heavyNode is the host that systemd runs.
type heavyNode struct{ node }

func (y *heavyNode) id() string { return "heavy" }

func (y *heavyNode) on(args ...string) *exec.Cmd {
	return y.Command(context.Background(), nil, args...)
}

func (y *heavyNode) within(pid int, script string) *exec.Cmd {
	return y.on("nsenter", "--target", strconv.Itoa(pid), "--all", "--", "/bin/sh", "-c", script)
}

// start connects the host with the switch and starts its agent, with the unit that is in examples.
func (y *heavyNode) start(t *testing.T, h *hosts) {
	t.Helper()
	n := h.net
	command(t, "ip", "-n", n.id, "link", "add", port(heavyHost), "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(y.PID()))
	command(t, "ip", "-n", n.id, "link", "set", port(heavyHost), "master", "switch", "up")
	y.Run(t, "sh", "-ec", `ip link set eth0 up
ip addr add `+addressOf(heavyHost)+`/24 dev eth0
echo nameserver 127.0.0.53 >/etc/resolv.conf # as systemd-resolved has it
mkdir -p /run/systemd/resolve
echo nameserver `+addressOf(hostServer)+` >/run/systemd/resolve/resolv.conf
cat >/etc/default/muster-agent <<END
MUSTER_JOIN=`+h.invite()+`
MUSTER_ID=heavy
MUSTER_LISTEN=`+addressOf(heavyHost)+`:8080
MUSTER_STATE_DIR=/var/tmp/agent
MUSTER_CPUS=4
MUSTER_MEMORY=2048
END`)
	y.muster(t, "image", "build-minimal", "--state-dir", "/var/tmp/agent")
	y.Run(t, "systemctl", "start", "muster-agent.service")
}

func (y *heavyNode) upgrade(t *testing.T) {
	t.Helper()
	y.Run(t, "systemctl", "stop", "muster-agent.service")
	y.node.upgrade(t)
	y.Run(t, "systemctl", "start", "muster-agent.service")
}

// instancesOf returns the cgroups of instances of a test, as their machines are named.
func instancesOf(id string) []string {
	var names []string
	for _, dir := range testGroups(id) {
		if name := filepath.Base(dir); strings.Contains(name, "-i-") && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// testGroups returns the cgroups of a test, parents first.
func testGroups(id string) []string {
	var dirs []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(path+"/", "/"+id+"/") {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}

// sweepGroups ends what runs in a test's cgroups and removes them, with the networks of the instances.
func sweepGroups(id string) {
	for _, name := range instancesOf(id) {
		_ = exec.Command("ip", "netns", "del", name).Run()
	}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		dirs := testGroups(id)
		if len(dirs) == 0 {
			return
		}
		for _, dir := range slices.Backward(dirs) {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // only cgroup2 has it
			_ = syscall.Rmdir(dir)
		}
	}
}

// sweepInstances removes what tests left that were killed.
func sweepInstances() {
	dead := map[string]bool{}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), networkPrefix) {
			pid, convErr := strconv.Atoi(strings.TrimPrefix(entry.Name(), networkPrefix))
			if convErr == nil && syscall.Kill(pid, 0) != nil {
				dead[entry.Name()] = true
			}
			return fs.SkipDir
		}
		return nil
	})
	for id := range dead {
		sweepGroups(id)
	}
}
