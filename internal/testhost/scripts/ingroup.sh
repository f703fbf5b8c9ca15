#!/bin/bash
# ingroup.sh NAME COMMAND...: run a command in a new cgroup, below the own one in each hierarchy.
set -e
name=$1
shift
groups=$(cat /proc/self/cgroup) # as a whole: joining changes it under the reader
while IFS=: read -r id controllers path; do
	case $id:$controllers in
	0:) top=/sys/fs/cgroup/unified && [ -d $top ] || top=/sys/fs/cgroup ;;
	*:name=*) top=/sys/fs/cgroup/${controllers#name=} ;;
	*) top=/sys/fs/cgroup/$controllers ;;
	esac
	own=$top${path%/}
	mkdir -p "$own/$name"
	if [ "$controllers" = cpuset ]; then
		for file in cpuset.cpus cpuset.mems; do cat "$own/$file" >"$own/$name/$file"; done
	fi
	echo $$ >"$own/$name/cgroup.procs"
done <<<"$groups"
exec "$@"
