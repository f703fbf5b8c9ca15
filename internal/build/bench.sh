#!/usr/bin/env bash
# Runs the benchmarks and prints a table, a row for each. Arguments are given to
# go test, such as -bench=Commit.
set -euo pipefail
cd "$(dirname "$0")/../.."

echo "| benchmark | figures |"
echo "|---|---|"
go test -run='^$' -bench=. -benchmem -timeout=30m "$@" ./... | awk '
	function span(ns) {
		if (ns < 1e3) return ns " ns"
		if (ns < 1e6) return sprintf("%.1f µs", ns / 1e3)
		if (ns < 1e9) return sprintf("%.1f ms", ns / 1e6)
		return sprintf("%.2f s", ns / 1e9)
	}
	function size(bytes) {
		if (bytes < 1024) return bytes " B"
		if (bytes < 1048576) return sprintf("%.1f KiB", bytes / 1024)
		return sprintf("%.1f MiB", bytes / 1048576)
	}
	/^Benchmark/ && NF > 3 {
		name = $1
		sub(/^Benchmark/, "", name)
		sub(/-[0-9]+$/, "", name)
		row = ""
		for (i = 3; i < NF; i += 2) {
			figure = $i " " $(i + 1)
			if ($(i + 1) == "ns/op") figure = span($i) "/op"
			if ($(i + 1) == "B/op") figure = size($i) "/op"
			row = row (row ? ", " : "") figure
		}
		printf "| %s | %s |\n", name, row
	}
	/^(FAIL|---|panic)/ { print > "/dev/stderr"; failed = 1 }
	END { exit failed }'
