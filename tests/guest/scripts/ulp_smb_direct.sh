#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# SMB Direct between two guests: ksmbd and cifs.
#
#	ulp_smb_direct server		exports a file system in the server's memory from now on; returns
#	ulp_smb_direct client MIB	copies a file of MIB MiB there and back, and small files, and compares
. /lab/lib.sh
set -eu

EXPORT=/srv/smb

server() {
	! mountpoint -q "$EXPORT" || return 0
	lab_insmod ksmbd
	mkdir -p "$EXPORT" /etc/ksmbd
	mount -t tmpfs -o size=256m none "$EXPORT"
	printf '[global]\n\tbind interfaces only = no\n[share]\n\tpath = %s\n\tread only = no\n' "$EXPORT" >/etc/ksmbd/ksmbd.conf
	ksmbd.adduser -a -p secret lab
	ksmbd.mountd
}

attach() {
	mount -t cifs -o "rdma,vers=3.1.1,username=lab,password=secret,uid=0,$1" "//$PEER_IP/share" /mnt/smb
}

client() {
	mib=$1
	lab_count_carried
	lab_insmod cifs
	mkdir -p /mnt/smb
	reach() { attach cache=none; }
	lab_until 60 reach || { attach cache=none; dmesg | tail -20; exit 1; }
	grep " /mnt/smb .*rdma" /proc/mounts
	dd if=/dev/urandom of=/tmp/content bs=1M count="$mib" status=none
	cp /tmp/content /mnt/smb/content
	cmp /tmp/content /mnt/smb/content
	umount /mnt/smb
	attach cache=strict
	cmp /tmp/content /mnt/smb/content
	cp -r /usr/include/rdma /mnt/smb/tree
	diff -r /usr/include/rdma /mnt/smb/tree
	fio --name=verify --directory=/mnt/smb --ioengine=libaio --direct=1 --rw=randwrite --bsrange=4k-256k --size=8m \
		--iodepth=8 --verify=crc32c --verify_fatal=1 --minimal >/tmp/fio.log || { cat /tmp/fio.log; exit 1; }
	# The file was written, and read twice without a cache; then fio.
	lab_has_carried $((3 * mib + 8))
	rm -r /mnt/smb/tree /mnt/smb/content
	umount /mnt/smb
	echo "all right"
}

"$@"
