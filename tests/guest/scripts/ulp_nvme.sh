#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# NVMe over RDMA between two guests.
#
#	ulp_nvme server			serves a disk of its memory from now on, from receive queues that connections
#					share; returns when one has used them
#	ulp_nvme disk			serves a disk of its memory from now on
#	ulp_nvme swap_server		serves the disk that it was given for swapping
#	ulp_nvme swap			swaps to the server's disk from now on, and to nothing else
#	ulp_nvme client PATTERN DEPTH…	writes and verifies, for each queue depth
. /lab/lib.sh
set -eu

NQN=nqn.2026-11.example:faultline
SUBSYSTEM=/sys/kernel/config/nvmet/subsystems/$NQN
PORT=/sys/kernel/config/nvmet/ports/1
MIB=64

server() {
	modprobe brd rd_nr=2 rd_size=$((MIB * 1024))
	modprobe nvmet-rdma use_srq=1
	serve /dev/ram0
	# A queue pair is shown with the queue that it receives from.
	shared() { shown=$(rdma resource show srq | grep "lqpn [0-9].*comm \[nvmet_rdma\]"); }
	# proves: create_srq, post_srq_recv
	lab_until 60 shared || {
		echo "no queue pair receives from a shared queue"
		rdma resource show srq
		exit 1
	}
	echo "$shown"
}

disk() {
	modprobe brd rd_nr=2 rd_size=$((MIB * 1024))
	serve /dev/ram0
}

swap_server() {
	[ ! -d "$SUBSYSTEM" ] || return 0
	disk=$(awk '/^.dev/ { print $1 }' /proc/swaps)
	swapoff "$disk"
	serve "$disk"
}

# With the disk.
serve() {
	[ ! -d "$SUBSYSTEM" ] || return 0
	modprobe -a configfs nvmet-rdma
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
	mkdir -p "$SUBSYSTEM/namespaces/1" "$PORT"
	echo 1 >"$SUBSYSTEM/attr_allow_any_host"
	echo "$1" >"$SUBSYSTEM/namespaces/1/device_path"
	echo 1 >"$SUBSYSTEM/namespaces/1/enable"
	echo rdma >"$PORT/addr_trtype"
	echo ipv4 >"$PORT/addr_adrfam"
	# Of any address: a port of one address ends with the device (nvmet_rdma_device_removal()).
	echo 0.0.0.0 >"$PORT/addr_traddr"
	echo 4420 >"$PORT/addr_trsvcid"
	ln -s "$SUBSYSTEM" "$PORT/subsystems/"
}

# The controller's directory, once it is there.
connect() {
	modprobe nvme-rdma
	reach() { echo "transport=rdma,traddr=$PEER_IP,trsvcid=4420,nqn=$NQN" >/dev/nvme-fabrics; }
	lab_until 30 reach || { echo "the disk does not appear"; exit 1; }
	lab_until 30 test -b /dev/nvme0n1 || { echo "there is a controller and no disk"; exit 1; }
}

swap() {
	! grep -q nvme /proc/swaps || return 0
	swapoff -a
	connect
	mkswap -q /dev/nvme0n1
	swapon /dev/nvme0n1
}

client() {
	pattern=$1
	shift
	connect
	for depth in "$@"; do
		# proves: alloc_mr, map_mr_sg, create_cq, poll_cq, post_recv, post_send
		# proves: req_notify_cq, IB_MR_TYPE_MEM_REG, IB_QPT_RC, IB_WR_RDMA_WRITE
		# proves: IB_WR_RDMA_READ, IB_WR_SEND_WITH_INV, IB_WC_WITH_INVALIDATE
		fio --name="$pattern-$depth" --filename=/dev/nvme0n1 --ioengine=libaio --direct=1 \
			--rw="$pattern" --bsrange=4k-256k --size=24m --iodepth="$depth" \
			--verify=crc32c --verify_fatal=1 --verify_backlog=64 --minimal >/tmp/fio.log ||
			{ cat /tmp/fio.log; exit 1; }
		echo "$pattern, depth $depth: verified"
	done
	echo 1 >/sys/class/nvme/nvme0/delete_controller
	# Others may still be looking at the disk.
	lab_until 20 modprobe -r nvme-rdma || { echo "the module stays in use"; exit 1; }
	echo "all right"
}

"$@"
