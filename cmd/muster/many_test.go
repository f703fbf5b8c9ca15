package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// TestMany puts more on a node than it usually has.
func TestMany(t *testing.T) {
	c := newCloud(t)
	api := c.client()
	run := func(name string, test func(*testing.T, *client.Client)) {
		t.Run(name, func(t *testing.T) {
			c.t = t
			test(t, api)
		})
		c.t = t
	}
	run("20 launches at once", c.twentyAtOnce)
	run("another agent on its state directory", c.anotherAgent)
	run("a log of 1 GB", c.gigabyteLog)
}

func (c *cloud) twentyAtOnce(t *testing.T, api *client.Client) {
	const n = 20
	var wait sync.WaitGroup
	ids := make([]muster.InstanceID, n)
	for k := range n {
		wait.Go(func() {
			i, err := api.LaunchInstance(t.Context(), muster.LaunchInstanceInput{Type: muster.Nano, Image: "minimal", RequestID: fmt.Sprint("many-", k)})
			if err != nil {
				t.Error(err)
				return
			}
			ids[k] = i.ID
		})
	}
	wait.Wait()
	machines, addrs, pids := map[string]bool{}, map[string]bool{}, map[int]bool{}
	for _, id := range ids {
		c.comes(api, id, muster.Running)
		i, err := api.Instance(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		machines[i.Machine], addrs[i.Addr], pids[*i.PID] = true, true, true
		c.short, _, _ = strings.Cut(i.Machine, "-")
	}
	if len(machines) != n || len(addrs) != n || len(pids) != n {
		t.Errorf("%d instances have %d machines, %d addresses and %d processes", n, len(machines), len(addrs), len(pids))
	}
	for what, there := range c.left() {
		if what != "mounts" && there < n {
			t.Errorf("there are %d %s of %d instances", there, what, n)
		}
	}
	for _, id := range ids {
		wait.Go(func() {
			if _, err := api.TerminateInstance(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for _, id := range ids {
		c.comes(api, id, muster.Terminated)
	}
	c.until("nothing is left", func() bool { return len(c.leftovers()) == 0 }) // files go after the machine
}

// leftovers names everything that there is of instances.
func (c *cloud) leftovers() (all []string) {
	for what, n := range c.left() {
		if n > 0 {
			all = append(all, fmt.Sprint(n, " ", what))
		}
	}
	for _, dir := range []string{"machines", "locks", "disks"} {
		entries, _ := os.ReadDir(filepath.Join(c.dir, "agent", dir))
		for _, entry := range entries {
			all = append(all, filepath.Join(dir, entry.Name()))
		}
	}
	return all
}

// comes waits for an instance's status.
func (c *cloud) comes(api *client.Client, id muster.InstanceID, want muster.InstanceStatus) {
	c.t.Helper()
	c.until(fmt.Sprintf("%s is %s", id, want), func() bool {
		i, err := api.Instance(c.t.Context(), id)
		return err == nil && i.Status == want
	})
}

// anotherAgent starts a second agent beside the first, whose instance does not notice.
func (c *cloud) anotherAgent(t *testing.T, api *client.Client) {
	i := c.launch("NANO")
	_, err := c.try("agent", "--id", "second", "--listen", "127.0.0.1:8090", "--state-dir", filepath.Join(c.dir, "agent"), "--cgroup-prefix", c.netns)
	if err == nil || !strings.Contains(err.Error(), "another agent uses the state directory "+filepath.Join(c.dir, "agent")) || !strings.Contains(err.Error(), "give this one another with --state-dir") {
		t.Errorf("it ended with %v", err)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 4 {
		t.Errorf("it ended with %v, want the exit code of a conflict", err)
	}
	if after := c.show(i.ID); after.Status != "RUNNING" || *after.PID != *i.PID {
		t.Errorf("the instance is %+v, and was %+v", after, i)
	}
	if _, err := api.Node(t.Context(), "second"); muster.CodeOf(err) != muster.NotFound {
		t.Errorf("the second node: %v", err)
	}
	c.muster("instance", "terminate", i.ID, "--wait")
}

// gigabyteLog has a payload write 1 GB, and looks at what that takes of the disk meanwhile and afterwards.
func (c *cloud) gigabyteLog(t *testing.T, _ *client.Client) {
	i := c.launch("LARGE", "/bin/sh", "-c", "yes 0123456789abcde | head -c 1073741824; echo; echo the end; sleep 1000")
	log := filepath.Join(c.dir, "agent/machines", i.Machine, "console.log")
	var peak int64
	c.until("all of it is written", func() bool {
		info, err := os.Stat(log)
		if err != nil {
			t.Fatal(err)
		}
		peak = max(peak, info.Sys().(*syscall.Stat_t).Blocks*512)
		return info.Size() > 1<<30
	})
	t.Logf("the log took at most %d MB of the disk", peak>>20)
	if peak > 256<<20 {
		t.Errorf("the log took %d bytes of the disk", peak)
	}
	if text := c.muster("logs", "--tail", "2", i.ID); !strings.HasSuffix(text, "\nthe end\n") {
		t.Errorf("it ends with %q", text)
	}
	c.until("all but the end is dropped", func() bool {
		info, err := os.Stat(log)
		return err == nil && info.Sys().(*syscall.Stat_t).Blocks*512 <= 2<<20
	})
	c.muster("instance", "terminate", i.ID, "--wait")
}
