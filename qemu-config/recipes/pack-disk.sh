#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the disk /mnt/disk of a root, without what is mounted in it: pack-disk MIB
set -eu
mkdir /tmp/root
mount --bind / /tmp/root
mke2fs -q -F -t ext4 -b 4096 -O '^has_journal,^metadata_csum' -m 0 -E lazy_itable_init=1,nodiscard -L faultline \
	-d /tmp/root /mnt/disk "${1}M"
umount /tmp/root
rmdir /tmp/root
