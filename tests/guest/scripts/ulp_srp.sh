#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# SCSI over RDMA (SRP) between two guests: a disk of the server's memory.
#
#	ulp_srp server			serves it from now on; returns
#	ulp_srp client PATTERN DEPTH…	writes and verifies, for each queue depth
. /lab/lib.sh
set -eu

TARGET=/sys/kernel/config/target
PORT=5555
BACK=$TARGET/core/iblock_0/disk

server() {
	[ ! -d "$BACK" ] || return 0
	modprobe -a configfs target_core_mod target_core_iblock
	modprobe ib_srpt srpt_service_guid=1
	modprobe brd rd_nr=2 rd_size=65536
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
	mkdir -p "$BACK"
	echo udev_path=/dev/ram1 >"$BACK/control"
	echo 1 >"$BACK/enable"
	mkdir -p "$TARGET/srpt"
	echo $PORT >"$TARGET/srpt/discovery_auth/rdma_cm_port"
	# Logins by the connection manager go to the target that is named after the port's GUID.
	name=$(cat "/sys/class/infiniband/$RDMA_DEV/node_guid")
	tpg=$TARGET/srpt/$name/$name
	mkdir -p "$tpg/lun/lun_0"
	ln -s "$BACK" "$tpg/lun/lun_0/disk"
	# Who may log in: the driver names those who use the connection manager after the address that they came to.
	acl=$tpg/acls/$MY_IP
	mkdir -p "$acl/lun_0"
	ln -s "$tpg/lun/lun_0" "$acl/lun_0/disk"
	echo 1 >"$tpg/enable"
}

client() {
	pattern=$1
	shift
	modprobe -a sd_mod ib_srp
	add=$(echo /sys/class/infiniband_srp/srp-*-1/add_target)
	reach() { echo "id_ext=0000000000000001,ioc_guid=0000000000000001,dest=$PEER_IP:$PORT" >"$add"; }
	lab_until 30 reach || { echo "the target does not let us in"; dmesg | tail -5; exit 1; }
	appears() {
		local disks=(/dev/sd?)
		disk=${disks[0]}
		[ -b "$disk" ]
	}
	lab_until 30 appears || { echo "there is a target and no disk"; dmesg | tail -5; exit 1; }
	for depth in "$@"; do
		# proves: IB_WR_LOCAL_INV
		fio --name="$pattern-$depth" --filename="$disk" --ioengine=libaio --direct=1 \
			--rw="$pattern" --bsrange=4k-256k --size=24m --iodepth="$depth" \
			--verify=crc32c --verify_fatal=1 --verify_backlog=64 --minimal >/tmp/fio.log ||
			{ cat /tmp/fio.log; exit 1; }
		echo "$pattern, depth $depth: verified"
	done
	echo 1 >"$(echo /sys/class/srp_remote_ports/port-*/delete)"
	# Others may still be looking at the disk.
	lab_until 20 modprobe -r ib_srp || { echo "the module stays in use"; exit 1; }
	echo "all right"
}

"$@"
