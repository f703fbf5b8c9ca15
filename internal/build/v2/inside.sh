#!/bin/bash
# What runs in the virtual machine, as a service; its output is the console's.
tests=$(cat /v2/tests)
status=0
echo "== kernel $(uname -r); /sys/fs/cgroup is $(stat -fc %T /sys/fs/cgroup) with $(cat /sys/fs/cgroup/cgroup.controllers); process 1 is $(cat /proc/1/comm) $(systemctl --version | sed -n '1s/systemd //p')"
run() { # name, command
	local name=$1 began=$SECONDS result=0
	shift
	echo "== $name"
	systemd-run --quiet --wait --pipe --collect --property=Delegate=yes --setenv=MUSTER_TEST_NETNS=1 --setenv=HOME=/root "$@" || result=$?
	echo "== $name: $((SECONDS - began)) s, exit $result"
	[ $result -eq 0 ] || status=1
}
run "cgroups" /v2/cgroup.test -test.v -test.run='OnThisHost|V2'
run "launcher systemd" --setenv=MUSTER_TEST_LAUNCHER=systemd /v2/nspawn.test -test.v -test.timeout=20m -test.run="$tests"
# Only there does a machine go on when its supervisor is killed.
run "launcher direct" --setenv=MUSTER_TEST_LAUNCHER=direct /v2/nspawn.test -test.v -test.timeout=20m -test.run="$tests|TestSurvive_SupervisorKilled"
[ $status -ne 0 ] || echo "== all passed"
sync
systemctl poweroff --force --force
