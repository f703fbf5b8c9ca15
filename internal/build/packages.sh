#!/usr/bin/env bash
# Prints the Go packages whose tests can run on this machine, and says on
# standard error which are left out and why. A test never skips itself: what
# it needs is known here, so that a green run never hides one that did not run.
#
#   internal/build/packages.sh together|alone
#
# `together` are those that can run beside others. `alone` are those that make
# real instances: they measure limits and count what is left on the machine, and
# run one at a time.
set -euo pipefail
cd "$(dirname "$0")/../.."

needs_root=(archive registry/images agent/nspawn agent/nspawn/cgroup agent/network agent/image internal/testhost cmd/muster)
needs_chromium=(server/console/browsertest)
needs_npm=(graph/transport/audit)
needs_balancers=(cli/render/tooltest)
alone=(agent/nspawn agent/network internal/testhost cmd/muster)

module=$(go list -m)
left_out=()

leave_out() { # why, packages
	local why=$1
	shift
	local package
	for package; do
		left_out+=("$module/$package")
		[ "$which" = alone ] || echo "test: left out: $package: $why" >&2
	done
}

# in_lines prints the module's packages of these names, one a line.
in_lines() { printf "$module/%s\n" "$@"; }

which=${1:?say which: together or alone}
[ "$(id -u)" -eq 0 ] || leave_out "its instances and networks are real and need root" "${needs_root[@]}"
command -v chromium >/dev/null || leave_out "it needs chromium" "${needs_chromium[@]}"
for tool in nginx haproxy promtool; do
	command -v "$tool" >/dev/null || leave_out "it needs $tool" "${needs_balancers[@]}"
done
command -v npm >/dev/null || leave_out "it needs Node.js and npm" "${needs_npm[@]}"

packages=$(go list ./...)
if [ ${#left_out[@]} -gt 0 ]; then
	packages=$(grep -vxF -f <(printf '%s\n' "${left_out[@]}") <<<"$packages")
fi
case $which in
together) grep -vxF -f <(in_lines "${alone[@]}") <<<"$packages" ;;
alone) grep -xF -f <(in_lines "${alone[@]}") <<<"$packages" || true ;;
*)
	echo "packages: $which is neither together nor alone" >&2
	exit 2
	;;
esac
