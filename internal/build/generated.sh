#!/usr/bin/env bash
# Runs the code generators: in the tree, or, with --check, in a copy of it that
# is then compared, so that a check changes nothing and an uncommitted tree is
# judged by what is in it.
#
#   internal/build/generated.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/../.."
tree=$PWD

generate() {
	go tool gqlgen generate
	(cd client && go tool genqlient)
}

# console rebuilds the bundle in server/console/assets.
console() {
	(cd server/console/ui && npm ci --ignore-scripts --no-audit --no-fund --silent && node build.mjs)
}

if [ "${1-}" != --check ]; then
	generate
	if command -v npm >/dev/null; then
		console
	else
		echo "generate: left out: the console: it needs Node.js and npm" >&2
	fi
	exit
fi

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
	[ -e "$file" ] && printf '%s\0' "$file"
done | tar --null --files-from=- --create --file=- | tar --extract --file=- --directory="$copy"
cd "$copy"
generate
# The console's own test knows whether its sources changed; the build itself is
# repeated where time is no matter.
if [ -n "${CI-}" ] && command -v npm >/dev/null; then
	console
fi
status=0
for path in graph client server/console/assets; do
	diff --recursive --brief --exclude="*.test" --exclude="*.prof" "$tree/$path" "$copy/$path" >&2 || status=1
done
if [ $status -ne 0 ]; then
	echo 'generated code is not current: run `make generate` and commit what it changes' >&2
fi
exit $status
