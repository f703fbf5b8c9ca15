package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-cloud/muster/internal/testhost"
)

// The images of a server: on its node, through a whole life.
func TestImages(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+nameServer+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MUSTER_RESOLV_CONF", conf)
	c := newCloud(t)
	run := func(name string, test func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			c.t = t
			test(t)
		})
		c.t = t
	}
	run("a Debian boots, though the server was killed while it was pulled", c.debianBoots)
	run("each instance keeps the version that it was launched from", c.versions)
	run("an image that was removed runs on", c.removedImage)
	run("an instance that is terminated while its image comes is gone", c.terminatedPull)
}

// nameServer is an address of the node's that names are answered on.
const nameServer = "10.99.99.53"

// debianPackages are what the Debian of the test is made of.
func debianPackages() []string {
	return []string{"systemd-sysv", "systemd", "dbus", "iproute2", "coreutils", "bash", "dash", "util-linux", "sed", "grep", "mawk", "procps", "base-files", "libc-bin", "hostname"}
}

// slowly bounds what the cloud's loopback carries, in Mbit/s, until the returned function.
func (c *cloud) slowly(megabits int) (faster func()) {
	c.t.Helper()
	tc := func(verb string, more ...string) {
		command(c.t, "ip", append([]string{"netns", "exec", c.netns, "tc", "qdisc", verb, "dev", "lo", "root"}, more...)...)
	}
	tc("replace", "tbf", "rate", fmt.Sprintf("%dmbit", megabits), "burst", "128kb", "latency", "50ms")
	return func() { tc("del") }
}

// part returns how much of an image has come, and whether some has.
func (c *cloud) part() (int64, bool) {
	parts, _ := filepath.Glob(filepath.Join(c.dir, "agent/images/.pulled/.part-*"))
	if len(parts) != 1 {
		return 0, false
	}
	info, err := os.Stat(parts[0])
	if err != nil {
		return 0, false
	}
	return info.Size(), info.Size() > 0
}

// begun launches and does not wait.
func (c *cloud) begun(args ...string) (i shown) {
	c.t.Helper()
	out := c.muster(append([]string{"instance", "launch", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &i); err != nil {
		c.t.Fatal(err)
	}
	c.short = strings.SplitN(i.Machine, "-", 2)[0]
	return i
}

func (c *cloud) debianBoots(t *testing.T) {
	tree := filepath.Join(t.TempDir(), "debian")
	if err := testhost.BuildRoot(t.Context(), tree, debianPackages()...); err != nil {
		t.Fatal(err)
	}
	c.muster("image", "import", "debian", tree)
	faster := c.slowly(40)
	i := c.begun("--type", "SMALL", "--image", "debian")
	c.until("a part of the image has come", func() bool { size, _ := c.part(); return size > 2<<20 })
	if now := c.show(i.ID); now.Status != "PROVISIONING" || now.StatusReason != "pulling image debian" {
		t.Errorf("while its image comes it is %+v", now)
	}
	if err := c.server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.server.Wait()
	before, _ := c.part()
	faster()
	c.server = c.begin("server", "--data-dir", filepath.Join(c.dir, "server"))
	c.until("it runs", func() bool {
		out, err := c.try("instance", "show", i.ID, "-o", "json")
		return err == nil && json.Unmarshal([]byte(out), &i) == nil && i.Status == "RUNNING"
	})
	log, err := os.ReadFile(c.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	has := regexp.MustCompile(`broke off; going on.* has=(\d+)`).FindStringSubmatch(string(log))
	if has == nil {
		t.Fatalf("the pull did not go on; the log has\n%s", log)
	}
	if went, _ := strconv.ParseInt(has[1], 10, 64); went < before {
		t.Errorf("the pull went on at %d, though %d had come", went, before)
	}
	c.checkBooted(t, i)
	c.muster("instance", "stop", i.ID, "--wait")
	if i = c.show(i.ID); i.Status != "STOPPED" || !strings.Contains(i.Output, "Reached target") {
		t.Errorf("stopped it is %+v, want its console", i)
	}
	c.muster("instance", "start", i.ID, "--wait")
	c.muster("instance", "terminate", i.ID, "--wait")
}

// checkBooted looks around in a booted Debian.
func (c *cloud) checkBooted(t *testing.T, i shown) {
	t.Helper()
	within := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "nsenter", append([]string{"--target", fmt.Sprint(*i.PID), "--all", "--"}, args...)...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	if out, err := within("systemctl", "is-system-running", "--wait"); out != "running" {
		failed, _ := within("systemctl", "--failed", "--no-legend", "--plain")
		t.Errorf("its systemd says %q, %v; failed are %s", out, err, failed)
	}
	if out, err := within("ip", "-brief", "address", "show", "dev", "eth0"); err != nil || !strings.Contains(out, i.Addr+"/24") {
		t.Errorf("its network is %q, %v, want %s", out, err, i.Addr)
	}
	command(t, "ip", "-n", c.netns, "addr", "replace", nameServer+"/32", "dev", "lo")
	whoAmI(t, c.netns, nameServer)
	if out, err := within("getent", "ahostsv4", "who.am.i.test"); err != nil || !strings.HasPrefix(out, i.Addr+" ") {
		t.Errorf("of its node's name server it gets %q, %v, want its own address %s", out, err, i.Addr)
	}
	// A unit of its own is within the instance's limits.
	if out, err := within("systemd-run", "--quiet", "--wait", "--pipe", "dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1"); err != nil {
		t.Errorf("100 MB in a SMALL: %v: %s", err, out)
	}
	if out, err := within("systemd-run", "--quiet", "--wait", "--pipe", "dd", "if=/dev/zero", "of=/dev/null", "bs=800M", "count=1"); err == nil {
		t.Errorf("800 MB in a SMALL succeeded: %s", out)
	}
	if out, err := within("systemctl", "is-active", "dbus"); out != "active" {
		t.Errorf("after that its bus is %q, %v", out, err)
	}
}

// version makes a tree of the minimal image with a file that tells its version.
func (c *cloud) version(text string) string {
	c.t.Helper()
	tree := filepath.Join(c.t.TempDir(), "web")
	command(c.t, "cp", "-a", filepath.Join(c.dir, "agent/images/minimal"), tree)
	if err := os.WriteFile(filepath.Join(tree, "etc/version"), []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
	return tree
}

// runs asserts which version an instance runs.
func (c *cloud) runs(id, version string) {
	c.t.Helper()
	i := c.show(id)
	if i.PID == nil {
		c.t.Fatalf("%s does not run: %+v", id, i)
	}
	got, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/version", *i.PID))
	if err != nil || string(got) != version {
		c.t.Errorf("%s runs version %q, %v, want %s", id, got, err, version)
	}
}

// pulled counts the server's images on the node.
func (c *cloud) pulled() int {
	trees, _ := filepath.Glob(filepath.Join(c.dir, "agent/images/.pulled/[0-9a-f]*"))
	return len(trees)
}

func (c *cloud) versions(t *testing.T) {
	before := c.pulled()
	c.muster("image", "import", "web", c.version("1"))
	old := c.begun("--type", "NANO", "--image", "web", "--wait")
	c.muster("image", "import", "web", c.version("2"))
	next := c.begun("--type", "NANO", "--image", "web", "--wait")
	c.runs(old.ID, "1")
	c.runs(next.ID, "2")
	c.muster("instance", "restart", old.ID, "--wait")
	c.runs(old.ID, "1")
	if n := c.pulled() - before; n != 2 {
		t.Errorf("the node has %d versions of it", n)
	}
	if out := c.muster("node", "show", "e2e", "-o", "json"); strings.Count(out, `"web@`) != 2 || !strings.Contains(out, `"minimal"`) {
		t.Errorf("the node does not tell of them: %s", out)
	}
	c.muster("instance", "terminate", old.ID, "--wait")
	c.until("the old version is gone from the node", func() bool { return c.pulled()-before == 1 })
	c.runs(next.ID, "2")
	c.muster("instance", "terminate", next.ID, "--wait")
}

func (c *cloud) removedImage(t *testing.T) {
	i := c.begun("--type", "NANO", "--image", "web", "--wait")
	_, err := c.try("image", "remove", "web")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.try("instance", "launch", "--type", "NANO", "--image", "web"); err == nil || !strings.Contains(err.Error(), `neither a node nor the server has the image "web"`) {
		t.Errorf("a launch from it: %v", err)
	}
	c.muster("instance", "restart", i.ID, "--wait")
	c.runs(i.ID, "2")
	c.muster("instance", "terminate", i.ID, "--wait")
}

func (c *cloud) terminatedPull(t *testing.T) {
	tree := c.version("3")
	command(t, "dd", "if=/dev/urandom", "of="+filepath.Join(tree, "noise"), "bs=1M", "count=20")
	c.muster("image", "import", "large", tree)
	before := c.pulled()
	faster := c.slowly(10)
	defer faster()
	i := c.begun("--type", "NANO", "--image", "large")
	c.until("a part of the image has come", func() bool { _, some := c.part(); return some })
	c.muster("instance", "terminate", i.ID, "--wait")
	c.until("the pull has ended", func() bool { _, some := c.part(); return !some })
	if c.pulled() != before {
		t.Error("the image came all the same")
	}
}
