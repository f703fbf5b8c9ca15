#!/usr/bin/env bash
# Runs the tests of instances on pure cgroup v2: Debian's cloud kernel in qemu, with systemd as process 1, both
# launchers one after the other. It needs no KVM, so it is slow: some five to fifteen minutes. It is for Debian on amd64.
#
#   internal/build/v2/run.sh
#
# TESTS is what runs there, as go test's -run has it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
here=$PWD/internal/build/v2
tests=${TESTS:-TestDriver_Conforms|TestLimits_|TestSurvive_AgentKilled}
if [ "$(id -u)" -ne 0 ]; then
	echo "v2: it makes a file system of Debian's files, and installs what is missing: run it as root" >&2
	exit 2
fi

missing=()
for package in qemu-system-x86 e2fsprogs kmod busybox-static systemd-sysv systemd-container dbus; do
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
apt-get update -qq >&2
if [ ${#missing[@]} -gt 0 ]; then
	echo "v2: installing ${missing[*]}" >&2
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
fi

work=$(mktemp -d /var/tmp/muster-v2.XXXXXX) # not in /tmp, which may be in memory
trap 'rm -rf "$work"' EXIT

# The kernel with its modules, which no machine needs installed.
package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -1)
(cd "$work" && apt-get download -qq "$package" 2>/dev/null && dpkg-deb -x "$package"_*.deb kernel)
release=$(basename "$work"/kernel/lib/modules/*)

# The root: this machine's Debian, the modules and the tests.
root=$work/root
internal/testhost/scripts/mkdeb.sh "$root" systemd-sysv systemd dbus systemd-container iproute2 busybox-static coreutils \
	bash dash util-linux sed grep mawk nftables procps base-files libc-bin hostname kmod
cp -a "$work/kernel/lib/modules" "$root/usr/lib/"
depmod -b "$root" "$release"
mkdir -p "$root/v2"
go test -c -o "$root/v2/nspawn.test" ./agent/nspawn
go test -c -o "$root/v2/cgroup.test" ./agent/nspawn/cgroup
install -m 0755 "$here/inside.sh" "$root/v2/"
printf '%s\n' "$tests" >"$root/v2/tests"
install -m 0644 "$here/tests.service" "$root/etc/systemd/system/"
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../tests.service "$root/etc/systemd/system/multi-user.target.wants/"
for unit in serial-getty@ttyS0.service getty.target console-getty.service systemd-timesyncd.service systemd-networkd.service timers.target; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
mke2fs -q -t ext4 -d "$root" "$work/disk" 1500M

# The initrd: what the kernel needs to find the disk.
initrd=$work/initrd
mkdir -p "$initrd"/{bin,dev,root,modules}
cp /bin/busybox "$initrd/bin/"
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
	find "$work/kernel/lib/modules" -name "$module.ko" -exec cp {} "$initrd/modules/" \;
done
install -m 0755 "$here/initrd.sh" "$initrd/init"
(cd "$initrd" && find . | busybox cpio -o -H newc 2>/dev/null) >"$work/initrd.img"

echo "v2: $package, $(nproc) CPUs without KVM"
began=$SECONDS
timeout "${TIMEOUT:-40m}" qemu-system-x86_64 -M q35 -m 3072 -smp 2 -accel tcg,thread=multi -cpu max,la57=off -display none -monitor none \
	-serial stdio -no-reboot -nic none -kernel "$work"/kernel/boot/vmlinuz-* -initrd "$work/initrd.img" \
	-drive "file=$work/disk,if=virtio,format=raw,cache=unsafe" \
	-append "console=ttyS0 quiet panic=-1 mitigations=off systemd.show_status=0" </dev/null | sed -u 's,\r$,,' | tee "$work/log"
echo "v2: $((SECONDS - began)) s"
grep -qx '== all passed' "$work/log"
