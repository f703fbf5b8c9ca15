#!/usr/bin/env bash
# Runs the benchmarks and prints a table: one row for each figure. Arguments are
# given to go test, such as -bench=Commit.
set -euo pipefail
cd "$(dirname "$0")/../.."

echo "| benchmark | figure |"
echo "|---|---|"
go test -run='^$' -bench=. -benchmem -timeout=30m "$@" ./... | awk '
	/^Benchmark/ {
		name = $1
		sub(/-[0-9]+$/, "", name)
		for (i = 3; i < NF; i += 2) printf "| %s | %s %s |\n", name, $i, $(i + 1)
	}
	/^(FAIL|---|panic)/ { print > "/dev/stderr"; failed = 1 }
	END { exit failed }'
