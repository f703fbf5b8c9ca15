#!/bin/sh
# Process 1 of a host whose systemd enforces limits: in a container the v1 controllers are read-only, and
# systemd then ignores every limit without a word.
for controller in . cpu cpuacct memory pids blkio devices freezer cpuset; do
	mount -o remount,bind,rw /sys/fs/cgroup/$controller
done
for dir in /proc/sys /sys; do
	mount -o remount,bind,rw $dir
done
exec /lib/systemd/systemd "$@"
