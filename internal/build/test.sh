#!/usr/bin/env bash
# Runs all Go tests that this machine can run; the arguments are go test's. It
# goes on after a failure, so that one run tells them all.
set -euo pipefail
cd "$(dirname "$0")/../.."

together=$(internal/build/packages.sh together)
alone=$(internal/build/packages.sh alone)
status=0
go test -timeout=8m "$@" $together || status=$?
if [ -n "$alone" ]; then
	go test -timeout=8m -p=1 "$@" $alone || status=$?
fi
exit $status
