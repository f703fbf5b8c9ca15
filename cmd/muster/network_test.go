package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"
)

// hostServer is the number of the server's host.
const hostServer = 0

// networkPrefix begins the names of the namespaces; the process of their test
// follows.
const networkPrefix = "muster-net-"

// network is a switch with hosts on it, each a network namespace, whose links can
// be cut. All is gone at the end of the test.
type network struct {
	t  testing.TB
	id string // the namespace of the switch; the hosts' have a number behind it
}

// newNetwork makes a network with a server and so many agents.
func newNetwork(t testing.TB, agents int) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes networks: run it as root")
	}
	sweepNetworks()
	n := &network{t: t, id: fmt.Sprint(networkPrefix, os.Getpid())}
	t.Cleanup(func() {
		for _, path := range namespaces(n.id) {
			_ = exec.Command("ip", "netns", "del", filepath.Base(path)).Run()
		}
		if left := namespaces(n.id); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	command(t, "ip", "netns", "add", n.id)
	command(t, "ip", "-n", n.id, "link", "add", "switch", "type", "bridge")
	command(t, "ip", "-n", n.id, "link", "set", "switch", "up")
	for k := range agents + 1 {
		host := n.host(k)
		command(t, "ip", "netns", "add", host)
		command(t, "ip", "-n", n.id, "link", "add", port(k), "type", "veth", "peer", "name", "eth0", "netns", host)
		command(t, "ip", "-n", n.id, "link", "set", port(k), "master", "switch", "up")
		command(t, "ip", "-n", host, "link", "set", "lo", "up")
		command(t, "ip", "-n", host, "addr", "add", addressOf(k)+"/24", "dev", "eth0")
		command(t, "ip", "-n", host, "link", "set", "eth0", "up")
	}
	return n
}

// sweepNetworks removes what tests left that were killed.
func sweepNetworks() {
	for _, path := range namespaces(networkPrefix) {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), networkPrefix), "-")
		if id, err := strconv.Atoi(pid); err == nil && errors.Is(syscall.Kill(id, 0), syscall.ESRCH) {
			out, _ := exec.Command("ip", "netns", "pids", filepath.Base(path)).Output()
			for _, word := range strings.Fields(string(out)) {
				if of, err := strconv.Atoi(word); err == nil {
					_ = syscall.Kill(of, syscall.SIGKILL)
				}
			}
			_ = exec.Command("ip", "netns", "del", filepath.Base(path)).Run()
		}
	}
}

func namespaces(prefix string) []string {
	all, _ := filepath.Glob("/run/netns/" + prefix + "*")
	return all
}

func (n *network) host(k int) string { return fmt.Sprint(n.id, "-", k) }

func port(k int) string { return fmt.Sprint("port", k) }

func addressOf(k int) string { return fmt.Sprint("10.77.0.", k+1) }

// link sets a host's link "up" or "down", at the switch.
func (n *network) link(t *testing.T, k int, state string) {
	t.Helper()
	command(t, "ip", "-n", n.id, "link", "set", port(k), state)
}

// command makes a muster command that runs on a host.
func (n *network) command(k int, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + n.host(k), "muster"}, args...)...)
}

// start starts muster on a host; it is killed at the end of the test.
func (n *network) start(k int, logs *os.File, args ...string) *exec.Cmd {
	n.t.Helper()
	process := n.command(k, args...)
	process.Stdout, process.Stderr = logs, logs
	process.Env = append(os.Environ(), "TMPDIR="+n.t.TempDir()) // what is killed cannot tidy up
	if err := process.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	return process
}

// newLogs is a file for what processes say; its end is shown when the test fails.
func newLogs(t testing.TB) *os.File {
	t.Helper()
	logs, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(logs.Name())
			t.Logf("the logs end with:\n%s", b[max(0, len(b)-8000):])
		}
		_ = logs.Close()
	})
	return logs
}

// transport connects from a host.
func (n *network) transport(k int) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return n.dial(ctx, k, network, addr)
	}}
}

// dial connects from a host.
func (n *network) dial(ctx context.Context, k int, network, addr string) (net.Conn, error) {
	type dialled struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialled, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked, so that the thread ends in the host's network
		var d dialled
		if d.err = enter(n.host(k)); d.err == nil {
			d.conn, d.err = new(net.Dialer).DialContext(ctx, network, addr)
		}
		done <- d
	}()
	d := <-done
	return d.conn, d.err
}

// enter takes the calling thread into a namespace.
func enter(name string) error {
	ns, err := netns.GetFromName(name)
	if err != nil {
		return fmt.Errorf("the namespace %s: %w", name, err)
	}
	defer ns.Close()
	return netns.Set(ns)
}
