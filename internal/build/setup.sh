#!/usr/bin/env bash
# Gets a Debian machine ready, for `run` (build and run) or for `test` (all of
# the checks and tests, which includes what `run` needs).
#
#   internal/build/setup.sh run|test
#
# As root it installs the packages that are missing. Otherwise it says which
# those are and what is left out without them, and fails only when nothing can
# be built at all.
set -euo pipefail

want=${1:?say what for: run or test}

# What a build cannot do without; what an instance needs on its node; what only
# the tests need.
build_packages=(gcc libc6-dev)
node_packages=(systemd-container busybox-static e2fsprogs iproute2 nftables util-linux procps)
test_packages=(chromium curl dbus haproxy nginx prometheus systemd-sysv)

installed() {
	if command -v dpkg-query >/dev/null; then
		[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
	else
		false
	fi
}

# missing prints those of its arguments that are not installed.
missing() {
	local package
	for package; do
		installed "$package" || printf '%s\n' "$package"
	done
}

# node_is_missing tells whether there is no Node.js of 18 or later with npm.
node_is_missing() {
	local version
	version=$(node --version 2>/dev/null) || return 0
	version=${version#v}
	[ "${version%%.*}" -lt 18 ] || ! command -v npm >/dev/null
}

needs_go() {
	if ! command -v go >/dev/null; then
		echo "setup: there is no go command: install Go $(sed -n 's/^go //p' go.mod) or later and put it into PATH" >&2
		exit 1
	fi
}

# install_or_tell installs its arguments as root, and says what to do otherwise.
install_or_tell() {
	if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
		echo "setup: installing $*" >&2
		apt-get update -qq >&2
		# RUNLEVEL: what is only tested with is not to be started by its installation.
		RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
		return
	fi
	{
		echo "setup: these packages are missing, and only root can install them:"
		echo
		echo "    sudo apt-get update && sudo apt-get install --no-install-recommends $*"
		echo
	} >&2
	tell_what_is_left_out "$@"
}

tell_what_is_left_out() {
	local package
	for package; do
		case $package in
		gcc | libc6-dev)
			command -v gcc >/dev/null && continue
			echo "setup: nothing can be built without a C compiler: SQLite is part of muster" >&2
			exit 1
			;;
		chromium) echo "setup: left out without it: the console's test in a browser" >&2 ;;
		nginx | haproxy | prometheus) echo "setup: left out without $package: the templates of examples/templates" >&2 ;;
		npm) echo "setup: left out without it: the tests against JavaScript clients, and rebuilding the console" >&2 ;;
		systemd-container) echo "setup: left out without it: real instances" >&2 ;;
		dbus | systemd-sysv) echo "setup: left out without $package: hosts of systemd's to test on" >&2 ;;
		esac
	done
}

cd "$(dirname "$0")/../.."
needs_go
packages=("${build_packages[@]}" "${node_packages[@]}")
if [ "$want" = test ]; then
	packages+=("${test_packages[@]}")
fi
mapfile -t absent < <(missing "${packages[@]}")
if [ "$want" = test ] && node_is_missing; then
	absent+=(nodejs npm)
fi
if [ ${#absent[@]} -gt 0 ]; then
	install_or_tell "${absent[@]}"
fi
