package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// serve installs and starts server and agent on a host whose state outlives its boots, and waits for the node.
func (n node) serve(t *testing.T) {
	t.Helper()
	n.install(t)
	n.Run(t, "systemd-run", "--quiet", "--unit=server", "--service-type=notify", "/usr/local/bin/muster", "server", "--data-dir", "/var/tmp/server")
	n.Run(t, "sh", "-c", "printf 'MUSTER_STATE_DIR=/var/tmp/agent\nMUSTER_ALLOW_HOST_PATH=/var/tmp/files\n' >/etc/default/muster-agent")
	n.Run(t, "systemctl", "start", "muster-agent.service")
	n.awaitHealthy(t)
}

// begun launches an instance and waits until it is in a status.
func (n node) begun(t *testing.T, status, script string) shown {
	t.Helper()
	var i shown
	if err := json.Unmarshal([]byte(n.muster(t, "instance", "launch", "--type", "NANO", "-o", "json", "--", "/bin/sh", "-c", script)), &i); err != nil {
		t.Fatal(err)
	}
	n.comes(t, i.ID, status)
	return n.show(t, i.ID).shown
}

func (n node) comes(t *testing.T, id, status string) {
	t.Helper()
	until(t, id+" is "+status, func() bool { return n.show(t, id).Status == status })
}

// deployed has a service deployed into an instance from a file that is gone then.
func (n node) deployed(t *testing.T, instance string) (service string) {
	t.Helper()
	n.Run(t, "sh", "-c", `mkdir -p /var/tmp/files; printf '#!/bin/sh\nexec sleep 100000\n' >/var/tmp/files/app`)
	var s struct{ ID string }
	if err := json.Unmarshal([]byte(n.muster(t, "service", "deploy", "app", "--instance", instance, "--url", "file:///var/tmp/files/app", "-o", "json", "--wait")), &s); err != nil {
		t.Fatal(err)
	}
	n.Run(t, "rm", "-r", "/var/tmp/files")
	return s.ID
}

// healthy waits until a service is.
func (n node) healthy(t *testing.T, service string) {
	t.Helper()
	until(t, service+" is healthy", func() bool {
		return strings.Contains(n.muster(t, "service", "show", service, "-o", "json"), `"health": "HEALTHY"`)
	})
}

// TestSystemd_Reboot boots a host again, by cutting its power and by shutting it down. What is wanted RUNNING runs again: the
// same generation on its own disk, with its service, although the file that that came from is gone. What was stopped, and what had
// ended, stays as it was.
func TestSystemd_Reboot(t *testing.T) {
	n := newNode(t)
	n.muster(t, "image", "build-minimal", "--state-dir", "/var/tmp/agent")
	n.serve(t)
	const counts = "trap 'exit 0' TERM; echo x >>/starts; while :; do sleep 1000 & wait $!; done"
	runs, stopped, ended := n.begun(t, "RUNNING", counts), n.begun(t, "RUNNING", counts), n.begun(t, "FAILED", "exit 3")
	n.muster(t, "instance", "stop", stopped.ID, "--wait")
	service := n.deployed(t, runs.ID)
	for boot, graceful := range []bool{false, true} {
		n.Reboot(t, graceful)
		n.serve(t)
		starts := fmt.Sprintf("/var/tmp/agent/disks/%s/upper/starts", diskOf(runs.Machine))
		want := strings.Repeat("x\n", boot+2)
		until(t, fmt.Sprintf("%s has started %d times", runs.ID, boot+2), func() bool { return n.Run(t, "cat", starts) == want })
		n.comes(t, runs.ID, "RUNNING")
		if after := n.show(t, runs.ID); after.Machine != runs.Machine || after.Generation != 1 || after.PID == nil {
			t.Errorf("graceful %t: what ran is %+v, and was %+v", graceful, after, runs)
		}
		n.healthy(t, service)
		if after := n.show(t, stopped.ID); after.Status != "STOPPED" || after.Generation != 1 {
			t.Errorf("graceful %t: what was stopped is %+v", graceful, after)
		}
		if after := n.show(t, ended.ID); after.Status != "FAILED" || after.ExitCode == nil || *after.ExitCode != 3 {
			t.Errorf("graceful %t: what had ended is %+v", graceful, after)
		}
		if units := n.Run(t, "systemctl", "--no-legend", "--plain", "list-units", "muster-*-i-*"); strings.Count(units, "\n") != 1 || !strings.Contains(units, runs.Machine) {
			t.Errorf("graceful %t: the instances' units are %q", graceful, units)
		}
	}
	n.muster(t, "instance", "stop", runs.ID, "--wait")
	n.muster(t, "instance", "start", runs.ID, "--wait")
	n.healthy(t, service)
	for _, id := range []string{runs.ID, stopped.ID, ended.ID} {
		n.muster(t, "instance", "terminate", id, "--wait")
	}
	until(t, "nothing is left", func() bool {
		return n.Run(t, "sh", "-c", "ls /var/tmp/agent/machines /var/tmp/agent/locks /var/tmp/agent/disks /run/netns | grep -- -i- | cat") == ""
	})
}
