#!/usr/bin/env bash
# Prints the Go packages whose tests can run on this machine, and says on
# standard error which are left out and why. A test never skips itself: what
# it needs is known here, so that a green run never hides one that did not run.
set -euo pipefail
cd "$(dirname "$0")/../.."

module=$(go list -m)
left_out=()

leave_out() { # why, packages
	local why=$1
	shift
	local package
	for package; do
		left_out+=("$module/$package")
		echo "test: left out: $package: $why" >&2
	done
}

needs_root=(agent/nspawn agent/network agent/image cmd/muster)
needs_chromium=(server/console/browsertest)
needs_npm=(graph/transport/audit)

[ "$(id -u)" -eq 0 ] || leave_out "its instances and networks are real and need root" "${needs_root[@]}"
command -v chromium >/dev/null || leave_out "it needs chromium" "${needs_chromium[@]}"
command -v npm >/dev/null || leave_out "it needs Node.js and npm" "${needs_npm[@]}"

go list ./... | grep -vxF -f <(printf '%s\n' "${left_out[@]:-none}")
