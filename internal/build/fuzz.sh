#!/usr/bin/env bash
# Runs every fuzz target of the repository for a while each.
#
#   internal/build/fuzz.sh TIME
set -euo pipefail
cd "$(dirname "$0")/../.."
each=${1:?say for how long, such as 10s}

grep --recursive --include='*_test.go' --only-matching --with-filename --no-messages '^func Fuzz[A-Za-z0-9_]*' . |
	sort | while IFS=: read -r file target; do
	target=${target#func }
	echo "== $(dirname "$file") $target"
	go test -run='^$' -fuzz="^$target\$" -fuzztime="$each" -fuzzminimizetime=10x "$(dirname "$file")" </dev/null
done
