#!/bin/busybox sh
# Process 1 of the initrd.
/bin/busybox mount -t devtmpfs none /dev
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
	/bin/busybox insmod /modules/$module.ko
done
/bin/busybox mount -t ext4 /dev/vda /root
exec /bin/busybox switch_root /root /lib/systemd/systemd
