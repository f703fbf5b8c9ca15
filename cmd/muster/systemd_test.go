package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster/internal/testhost"
)

// node is a host of systemd's with a server and an agent, installed as docs/install.md says.
type node struct {
	*testhost.Host
}

func newNode(t *testing.T) node {
	t.Helper()
	return newNodeOn(t, testhost.Options{})
}

func newNodeOn(t *testing.T, o testhost.Options) node {
	t.Helper()
	program, err := exec.LookPath("muster")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Abs("../../examples/systemd")
	if err != nil {
		t.Fatal(err)
	}
	o.Binds = map[string]string{"/opt/muster": program, "/opt/systemd": examples}
	n := node{testhost.Boot(t, o)}
	n.install(t)
	return n
}

// install puts the program and its units where they belong.
func (n node) install(t *testing.T) {
	t.Helper()
	n.upgrade(t)
	n.Run(t, "sh", "-c", "cp /opt/systemd/*.service /etc/systemd/system/ && systemctl daemon-reload")
}

// upgrade puts another file in the place of the program's.
func (n node) upgrade(t *testing.T) {
	t.Helper()
	n.Run(t, "install", "-D", "--mode=0755", "/opt/muster", "/usr/local/bin/muster")
}

func (n node) muster(t *testing.T, args ...string) string {
	t.Helper()
	return n.Run(t, append([]string{"/usr/local/bin/muster"}, args...)...)
}

// property returns one of a unit's.
func (n node) property(t *testing.T, unit, name string) string {
	t.Helper()
	return strings.TrimSpace(n.Run(t, "systemctl", "show", unit, "--value", "--property="+name))
}

func (n node) show(t *testing.T, id string) (i struct {
	shown
	Revision, Generation int64
},
) {
	t.Helper()
	if err := json.Unmarshal([]byte(n.muster(t, "instance", "show", id, "-o", "json")), &i); err != nil {
		t.Fatal(err)
	}
	return i
}

// until polls: other processes take their time.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come to that: %s", what)
		}
	}
}

// TestSystemd_Units runs the units of examples/systemd. An instance outlives its agent, which is stopped,
// replaced, started and killed, without a change of it in the registry.
func TestSystemd_Units(t *testing.T) {
	n := newNode(t)
	if out := n.Run(t, "systemd-analyze", "verify", "/etc/systemd/system/muster-server.service", "/etc/systemd/system/muster-agent.service"); out != "" {
		t.Errorf("systemd has to say of the units: %s", out)
	}
	n.startBoth(t)
	var launched shown
	out := n.muster(t, "instance", "launch", "--type", "NANO", "--wait", "-o", "json", "--", "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 60 & wait $!; done")
	if err := json.Unmarshal([]byte(out), &launched); err != nil {
		t.Fatal(err)
	}
	before := n.show(t, launched.ID)
	if before.PID == nil || !strings.Contains(n.Run(t, "machinectl", "list"), before.Machine) {
		t.Fatalf("launched %+v, want a PID, and machinectl to list it", before)
	}
	for what, happens := range map[string]func(){
		"the agent was upgraded": func() {
			n.Run(t, "systemctl", "stop", "muster-agent.service")
			n.alive(t, *before.PID)
			n.upgrade(t)
			n.Run(t, "systemctl", "start", "muster-agent.service")
		},
		"the agent was killed": func() {
			n.Run(t, "systemctl", "kill", "--signal=KILL", "muster-agent.service")
			until(t, "systemd has started the agent again", func() bool { return n.property(t, "muster-agent.service", "NRestarts") == "1" })
		},
	} {
		happens()
		n.awaitHealthy(t)
		if after := n.show(t, launched.ID); after.PID == nil || *after.PID != *before.PID || after.Status != "RUNNING" || after.Revision != before.Revision || after.Generation != before.Generation {
			t.Errorf("after %s the instance is %+v, before %+v", what, after, before)
		}
		n.alive(t, *before.PID)
	}
	n.muster(t, "instance", "terminate", launched.ID, "--wait")
	if left := n.Run(t, "systemctl", "--no-legend", "list-units", "muster-"+before.Machine+"*"); left != "" {
		t.Errorf("left: %s", left)
	}
	n.Run(t, "systemctl", "stop", "muster-agent.service", "muster-server.service")
	for _, unit := range []string{"muster-agent.service", "muster-server.service"} {
		if result := n.property(t, unit, "Result"); result != "success" {
			t.Errorf("%s ended with %s", unit, result)
		}
	}
}

// startBoth starts the server and an agent, with an image.
func (n node) startBoth(t *testing.T) {
	t.Helper()
	n.Run(t, "systemctl", "start", "muster-server.service") // returns once it is ready
	n.muster(t, "node", "list")
	// Roots are overlays, which cannot be on the host's own root: that is one too.
	n.Run(t, "sh", "-c", "echo MUSTER_STATE_DIR=/var/tmp/agent >/etc/default/muster-agent")
	n.muster(t, "image", "build-minimal", "--state-dir", "/var/tmp/agent")
	n.Run(t, "systemctl", "start", "muster-agent.service")
	n.awaitHealthy(t)
}

// awaitHealthy returns when the agent that runs now has registered and beats.
func (n node) awaitHealthy(t *testing.T) {
	t.Helper()
	pid := n.property(t, "muster-agent.service", "MainPID")
	until(t, "the node is HEALTHY by the agent that runs", func() bool {
		out, err := n.Try(t.Context(), "sh", "-c", "journalctl -q -o cat _PID="+pid+" | grep -c 'is registered'; /usr/local/bin/muster node list")
		return err == nil && !strings.HasPrefix(out, "0") && strings.Contains(out, "HEALTHY")
	})
}

func (n node) alive(t *testing.T, pid int) {
	t.Helper()
	if _, err := n.Try(t.Context(), "kill", "-0", strconv.Itoa(pid)); err != nil {
		t.Errorf("process %d of the instance has ended", pid)
	}
}

// TestSystemd_Watchdog stops the server's process as a hang does: it is started again. Before it does that, its
// answers to the watchdog keep it.
func TestSystemd_Watchdog(t *testing.T) {
	n := newNode(t)
	n.Run(t, "sh", "-c", "mkdir /run/systemd/system/muster-server.service.d && printf '[Service]\\nWatchdogSec=1\\n' >/run/systemd/system/muster-server.service.d/short.conf && systemctl daemon-reload")
	n.Run(t, "systemctl", "start", "muster-server.service")
	pings := map[string]bool{}
	until(t, "it answers the watchdog again and again", func() bool {
		pings[n.property(t, "muster-server.service", "WatchdogTimestampMonotonic")] = true
		return len(pings) >= 5
	})
	if n := n.property(t, "muster-server.service", "NRestarts"); n != "0" {
		t.Errorf("it was restarted %s times while it was well", n)
	}
	n.Run(t, "systemctl", "kill", "--signal=STOP", "muster-server.service")
	until(t, "systemd has started it again", func() bool { return n.property(t, "muster-server.service", "NRestarts") == "1" })
	until(t, "it serves", func() bool { _, err := n.Try(t.Context(), "/usr/local/bin/muster", "node", "list"); return err == nil })
}

// TestSystemd_LimitsThatDoNotBind launches on a host whose systemd takes limits and ignores them.
func TestSystemd_LimitsThatDoNotBind(t *testing.T) {
	n := newNodeOn(t, testhost.Options{ReadOnlyGroups: true})
	n.startBoth(t)
	var launched shown
	if err := json.Unmarshal([]byte(n.muster(t, "instance", "launch", "--type", "NANO", "-o", "json")), &launched); err != nil {
		t.Fatal(err)
	}
	until(t, "it is FAILED", func() bool { return n.show(t, launched.ID).Status == "FAILED" })
	i := n.show(t, launched.ID)
	for _, want := range []string{"could not start: ", "systemd does not enforce limits", "systemd.unified_cgroup_hierarchy=1"} {
		if !strings.Contains(i.StatusReason, want) {
			t.Errorf("it has failed because %q, want %q in it", i.StatusReason, want)
		}
	}
	n.muster(t, "instance", "terminate", launched.ID, "--wait")
}
