#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Puts devices beyond disk and NIC into use: use_hardware [zram=MIB] [swap_disk] [pmem] [huge_pages=COUNT]
. /lab/lib.sh
set -e

for part in "$@"; do
	case $part in
	zram=*)
		modprobe zram
		echo "${part#*=}M" >/sys/block/zram0/disksize
		mkswap -q /dev/zram0
		swapon -p 100 /dev/zram0
		;;
	swap_disk)
		disk=$(grep -lx swap /sys/block/vd*/serial | cut -d/ -f4)
		mkswap -q "/dev/$disk"
		swapon "/dev/$disk"
		;;
	pmem)
		modprobe -a virtio_pmem nd_pmem
		lab_until 10 test -b /dev/pmem0
		mkdir -p /mnt/dax
		mount -t ext4 -o dax=always /dev/pmem0 /mnt/dax
		# A kernel that cannot do it mounts without, and says so.
		grep -q ' /mnt/dax .*dax=always' /proc/mounts
		;;
	huge_pages=*)
		echo "${part#*=}" >/proc/sys/vm/nr_hugepages
		[ "$(cat /proc/sys/vm/nr_hugepages)" -ge "${part#*=}" ]
		;;
	*)
		echo "unknown hardware: $part"
		exit 2
		;;
	esac
done
