package nspawn_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/agent/nspawn"
	"github.com/muster-cloud/muster/internal/testhost"
)

// testBinary is this test's on a host.
const testBinary = "/opt/nspawn.test"

// onSystemd are the tests that are run again on a host of systemd's, where each machine is a unit.
var onSystemd = []string{
	"TestDriver_Conforms", "TestLimits_CPU", "TestLimits_Memory", "TestLimits_EveryType", "TestSurvive_AgentKilled", "TestPayload_KilledBySignal", "TestPayload_EnvironmentIsSecret", "TestLeak_FiftyLaunches", "TestVolumes_", "TestProcess_", "TestExec_", "TestInstall_", "TestHealth_", "TestService_",
}

func bootHost(t *testing.T, o testhost.Options) *testhost.Host {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Binds = map[string]string{testBinary: self}
	return testhost.Boot(t, o)
}

// TestSystemd has machines as units, on a host whose systemd enforces limits.
func TestSystemd(t *testing.T) {
	h := bootHost(t, testhost.Options{})
	for name, check := range map[string]func(*testing.T, *testhost.Host){
		"the same tests":     sameTests,
		"a unit":             unitAsSeen,
		"stopped by systemd": stoppedBySystemd,
		"supervisor killed":  unitWithoutSupervisor,
	} {
		t.Run(name, func(t *testing.T) { check(t, h) })
	}
	t.Run("the host is shut down", func(t *testing.T) { shutDown(t, h) })
}

// sameTests runs tests of this package inside, where nspawn.Auto is systemd.
func sameTests(t *testing.T, h *testhost.Host) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := h.Command(ctx, []string{"--setenv=MUSTER_TEST_NETNS=1"}, testBinary, "-test.v", "-test.timeout=150s", "-test.run=^("+strings.Join(onSystemd, "|")+")")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	for _, name := range onSystemd {
		if !strings.Contains(out.String(), "--- PASS: "+name) {
			t.Errorf("%s did not pass on it", name)
		}
	}
	if err != nil {
		t.Errorf("on the host: %v", err)
	}
	if t.Failed() || testing.Verbose() {
		t.Log(out.String())
	}
}

// launchInside has an agent inside launch a machine, and be killed. The state directory is a new one.
func launchInside(t *testing.T, h *testhost.Host, name, script string) driver.Status {
	t.Helper()
	state := filepath.Join(h.Dir, "var-tmp", name)
	if _, err := image.Open(filepath.Join(state, "images")).BuildMinimal(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(driver.Spec{
		Machine: name, Disk: name, Instance: "i-1", Generation: 1, Hostname: name, Image: image.Minimal,
		Command: []string{"/bin/sh", "-c", script}, CPUPercent: 25, MemoryMB: 128,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	agent := h.Command(ctx, []string{"--unit=agent-" + name}, testBinary, "agent", "/var/tmp/"+name, "musters", string(text))
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	agent.Stderr = &said
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	var status driver.Status
	if err := json.NewDecoder(out).Decode(&status); err != nil {
		t.Errorf("launch: %v: %s", err, said.String())
	}
	h.Run(t, "systemctl", "kill", "--signal=KILL", "agent-"+name+".service")
	if err := agent.Wait(); err == nil {
		t.Error("the agent ended by itself")
	}
	return status
}

// awaitEnding polls until the supervisor has written down how a machine ended.
func awaitEnding(t *testing.T, h *testhost.Host, name string) (e struct{ Reason string }) {
	t.Helper()
	path := filepath.Join(h.Dir, "var-tmp", name, "machines", name, "exit.json")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(path)
		if err == nil {
			if err := json.Unmarshal(text, &e); err != nil {
				t.Fatal(err)
			}
			return e
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// unitAsSeen looks at a machine as an operator of the host does.
func unitAsSeen(t *testing.T, h *testhost.Host) {
	const name, unit = "seen", "musters-seen.service"
	m := launchInside(t, h, name, "while :; do sleep 1; done")
	if m.State != driver.Running {
		t.Fatalf("launched as %+v", m)
	}
	shown := h.Run(t, "systemctl", "show", unit)
	for _, want := range []string{
		"ActiveState=active", "Slice=musters.slice", "Description=muster instance i-1, generation 1", "Type=notify", "Delegate=yes", "KillMode=mixed",
		"CPUQuotaPerSecUSec=250ms", "MemoryMax=134217728", "MemorySwapMax=0", "TasksMax=4096", "OOMPolicy=continue", "CollectMode=inactive-or-failed",
	} {
		if !strings.Contains(shown, want+"\n") {
			t.Errorf("the unit has not %s", want)
		}
	}
	if list := h.Run(t, "machinectl", "--no-legend", "list"); !strings.Contains(list, name+" container systemd-nspawn") {
		t.Errorf("machinectl lists %q", list)
	}
	if leader := h.Run(t, "machinectl", "show", name, "--property=Leader", "--value"); strings.TrimSpace(leader) != strconv.Itoa(m.PID) {
		t.Errorf("its process 1 is %q, want %d", leader, m.PID)
	}
	_, _ = h.Try(t.Context(), "systemctl", "daemon-reexec") // it cannot tell how that went, since systemd hangs up
	awaitOutput(t, h, strconv.Itoa(m.PID), "machinectl", "show", name, "--property=Leader", "--value")
	awaitOutput(t, h, `"state":"RUNNING"`, testBinary, "list", "/var/tmp/"+name, "musters") // systemd has kept the lock
	h.Run(t, "systemctl", "stop", unit)
}

// awaitOutput repeats a command inside until it prints something.
func awaitOutput(t *testing.T, h *testhost.Host, want string, args ...string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		out, err := h.Try(t.Context(), args...)
		if strings.Contains(out, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v prints %q, %v, want %q", args, out, err, want)
		}
	}
}

// stoppedBySystemd stops a machine's unit, as the host's shutdown does.
func stoppedBySystemd(t *testing.T, h *testhost.Host) {
	const name = "halted"
	launchInside(t, h, name, "trap 'exit 6' TERM; while :; do sleep 60 & wait $!; done")
	h.Run(t, "systemctl", "stop", "musters-"+name+".service")
	if e := awaitEnding(t, h, name); e.Reason != "exited with status 6" {
		t.Errorf("ended with %q", e.Reason)
	}
}

// shutDown has the host end a machine: the agent is to start that again when the host is back.
func shutDown(t *testing.T, h *testhost.Host) {
	const name = "off"
	launchInside(t, h, name, "trap 'exit 6' TERM; while :; do sleep 60 & wait $!; done")
	_, _ = h.Try(t.Context(), "systemctl", "poweroff") // it does not return, or does not say how
	if e := awaitEnding(t, h, name); e.Reason != "the host was restarted" {
		t.Errorf("ended with %q", e.Reason)
	}
}

// unitWithoutSupervisor kills a supervisor: systemd ends what it leaves, and the next agent finds that.
func unitWithoutSupervisor(t *testing.T, h *testhost.Host) {
	const name = "orphan"
	launchInside(t, h, name, "while :; do sleep 1; done")
	h.Run(t, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", "musters-"+name+".service")
	awaitOutput(t, h, "ended while its supervisor was gone", testBinary, "list", "/var/tmp/"+name, "musters")
	if left := h.Run(t, "sh", "-c", "pgrep -f '[m]achine=orphan' || true"); left != "" {
		t.Errorf("processes are left: %s", left)
	}
}

// TestSystemd_IgnoresLimits has a host whose systemd takes limits and does not enforce them.
func TestSystemd_IgnoresLimits(t *testing.T) {
	h := bootHost(t, testhost.Options{ReadOnlyGroups: true})
	m := launchInside(t, h, "free", "sleep 60")
	if m.State != driver.Exited || !strings.HasPrefix(m.Reason, "could not start: ") ||
		!strings.Contains(m.Reason, "the host's systemd does not enforce limits") || !strings.Contains(m.Reason, "systemd.unified_cgroup_hierarchy=1") {
		t.Errorf("launched as %+v, want it Exited with the remedy", m)
	}
	if left := h.Run(t, "sh", "-c", "pgrep -f '[m]achine=free' || systemctl --no-legend list-units 'musters-*'"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestCheck_Launchers asks for launchers that cannot work here: if systemd runs this machine, then not this network namespace.
func TestCheck_Launchers(t *testing.T) {
	for launcher, want := range map[nspawn.Launcher]string{
		nspawn.Systemd: "use --launcher direct",
		"docker":       `"docker" is no launcher; it is auto, systemd or direct`,
		nspawn.Auto:    "",
		nspawn.Direct:  "",
	} {
		err := nspawn.New(nspawn.Options{StateDir: "/var/tmp", Launcher: launcher}).Check(t.Context())
		if want == "" && err != nil || want != "" && (muster.CodeOf(err) == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", launcher, err, want)
		}
	}
}
