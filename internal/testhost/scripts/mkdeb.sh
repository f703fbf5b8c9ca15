#!/bin/bash
# mkdeb.sh DIR PACKAGE...: make a bootable Debian root out of packages that are installed on this machine, without a download.
set -euo pipefail
root=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$root"/usr/{bin,sbin,lib,lib64}
for dir in bin sbin lib lib64; do ln -s usr/$dir "$root/$dir"; done

# The packages with what they depend on.
dpkg-query -W -f='${db:Status-Status}|${Package}|${Pre-Depends},${Depends}|${Provides}\n' |
	awk -F'|' -v want="$*" '
	$1 == "installed" {
		have[$2] = 1; n = split($0, field, "|"); deps = ""
		for (i = 3; i < n; i++) deps = deps (i > 3 ? "|" : "") field[i]
		needs[$2] = deps; m = split(field[n], given, ",")
		for (j = 1; j <= m; j++) { gsub(/\(.*\)| /, "", given[j]); if (given[j] != "") by[given[j]] = $2 }
	}
	END {
		n = split(want, todo, " ")
		while (n > 0) {
			p = todo[n--]; if (!(p in have) && (p in by)) p = by[p]
			if (!(p in have) || (p in seen)) continue
			seen[p] = 1; print p; m = split(needs[p], all, ",")
			for (i = 1; i <= m; i++) {
				k = split(all[i], any, "|")
				for (j = 1; j <= k; j++) {
					c = any[j]; gsub(/\([^)]*\)|:any| /, "", c)
					if ((c in have) || (c in by)) { todo[++n] = c; break }
				}
			}
		}
	}' >"$work/packages"

xargs dpkg-query -L <"$work/packages" | grep '^/' |
	grep -vE '^/usr/share/(doc|man|locale|info|lintian|bug)/|^/\.$' |
	grep -vxE '/(bin|sbin|lib|lib64|lib32|libx32)' | sort -u | sed 's,^,.,' >"$work/files"
# Files that are listed but were removed from the machine are no loss.
tar -C / --no-recursion --ignore-failed-read -cf - -T "$work/files" 2>/dev/null |
	tar -C "$root" --keep-directory-symlink -xf - || true
mkdir -p "$root"/{proc,sys,dev,run,tmp,root,var/tmp,etc}
chmod 1777 "$root/tmp" "$root/var/tmp"
cp -a /etc/{passwd,group,nsswitch.conf} "$root/etc/"
echo 'root:*:19000:0:99999:7:::' >"$root/etc/shadow"
chmod 640 "$root/etc/shadow"
: >"$root/etc/machine-id"
ldconfig -r "$root"
