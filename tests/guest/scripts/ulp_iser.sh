#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# SCSI over iSER between two guests: open-iscsi, and a disk of the server's memory behind LIO.
#
#	ulp_iser server			serves it from now on; returns
#	ulp_iser client DEPTH…		logs in, writes and verifies for each queue depth, logs out and in, compares, logs out
. /lab/lib.sh
set -eu

TARGET=/sys/kernel/config/target
NAME=iqn.2026-11.example:faultline
BACK=$TARGET/core/rd_mcp_0/disk
GROUP=$TARGET/iscsi/$NAME/tpgt_1

server() {
	[ ! -d "$GROUP" ] || return 0
	modprobe -a configfs target_core_mod iscsi_target_mod ib_isert
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
	mkdir -p "$BACK"
	echo rd_pages=16384 >"$BACK/control"
	echo 1 >"$BACK/enable"
	mkdir -p "$TARGET/iscsi"
	mkdir -p "$GROUP/lun/lun_0" "$GROUP/np/$MY_IP:3260"
	ln -s "$BACK" "$GROUP/lun/lun_0/disk"
	echo 0 >"$GROUP/attrib/authentication"
	echo 1 >"$GROUP/attrib/generate_node_acls"
	echo 0 >"$GROUP/attrib/demo_mode_write_protect"
	echo 1 >"$GROUP/np/$MY_IP:3260/iser"
	echo 1 >"$GROUP/enable"
}

node() { iscsiadm -m node -T $NAME -p "$PEER_IP:3260" "$@"; }

# Otherwise the kernel may try to suspend the host of the disk while the logout removes the disk, and warn of active children.
keep_powered() {
	local device
	device=$(realpath "/sys/block/$disk/device")
	# The disk's device, the target, the session and the host.
	while :; do
		[ ! -e "$device/power/control" ] || echo on >"$device/power/control"
		[[ ${device##*/} != host* ]] || break
		device=${device%/*}
		[ -n "$device" ] || { echo "$disk has no SCSI host"; exit 1; }
	done
}

login() {
	node --login >/tmp/login.log 2>&1 || { cat /tmp/login.log; dmesg | tail -5; exit 1; }
	appears() {
		disk=$(iscsiadm -m session -P 3 | awk '/Attached scsi disk/ { print $4; exit }')
		[ -n "$disk" ] && [ -b "/dev/$disk" ]
	}
	lab_until 30 appears || { iscsiadm -m session -P 3; dmesg | tail -5; exit 1; }
	keep_powered
	iscsiadm -m session | grep "^iser:"
}

logout() {
	node --logout >/tmp/logout.log || { cat /tmp/logout.log; exit 1; }
	lab_until 20 test ! -e "/dev/$disk"
}

client() {
	lab_count_carried
	modprobe -a sd_mod ib_iser
	mkdir -p /run/lock/iscsi /etc/iscsi
	[ -s /etc/iscsi/initiatorname.iscsi ] && grep -q ^InitiatorName= /etc/iscsi/initiatorname.iscsi ||
		echo "InitiatorName=iqn.2026-11.example:client" >/etc/iscsi/initiatorname.iscsi
	iscsid
	# Without discovery: on a busy host it can time out, and then leaves a session for ever.
	node -I iser -o new
	node -o update -n node.session.iscsi.ImmediateData -v Yes
	login
	for depth in "$@"; do
		fio --name="depth-$depth" --filename="/dev/$disk" --ioengine=libaio --direct=1 \
			--rw=randrw --bsrange=4k-256k --size=24m --iodepth="$depth" \
			--verify=crc32c --verify_fatal=1 --verify_backlog=64 --minimal >/tmp/fio.log ||
			{ cat /tmp/fio.log; exit 1; }
		echo "depth $depth: verified"
	done
	dd if=/dev/urandom of=/tmp/content bs=1M count=16 status=none
	dd if=/tmp/content of="/dev/$disk" bs=1M oflag=direct status=none
	logout
	login
	dd if="/dev/$disk" bs=1M count=16 iflag=direct status=none | cmp - /tmp/content
	logout
	node -o delete
	# What fio and dd have written and read.
	lab_has_carried $(($# * 24 + 2 * 16))
	kill "$(cat /run/iscsid.pid)"
	lab_until 20 modprobe -r ib_iser || { echo "the module stays in use"; exit 1; }
	echo "all right"
}

"$@"
