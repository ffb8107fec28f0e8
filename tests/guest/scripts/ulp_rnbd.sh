#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# RNBD, a block device over RTRS, between two guests: a disk of the server's memory.
#
#	ulp_rnbd server			serves it from now on; returns
#	ulp_rnbd client DEPTH…		maps it, writes and verifies for each queue depth, breaks the connection, verifies after the
#					reconnection, and unmaps it
. /lab/lib.sh
set -eu

SESSION=faultline
CLIENT=/sys/devices/virtual/rnbd-client/ctl
OF_SESSION=/sys/devices/virtual/rtrs-client/$SESSION
PATHS=$OF_SESSION/paths

server() {
	modprobe brd rd_nr=2 rd_size=65536
	# A server has a buffer for each request of a session.
	[ -d /sys/module/rtrs_server ] || {
		lab_insmod rtrs-core
		insmod "/usr/lib/modules/$(uname -r)/upstream/rtrs-server.ko" sess_queue_depth=64
	}
	lab_insmod rnbd-server
}

map() {
	echo "sessname=$SESSION path=ip:$PEER_IP device_path=/dev/ram0 access_mode=rw" >$CLIENT/map_device
}

verify() {
	fio --name="$1" --filename=/dev/rnbd0 --ioengine=libaio --direct=1 --rw="$2" --bsrange=4k-256k --size=16m \
		--iodepth="$3" --verify=crc32c --verify_fatal=1 --verify_backlog=64 --minimal "${@:4}" >/tmp/fio.log ||
		{ cat /tmp/fio.log; exit 1; }
	echo "$1: verified"
}

connections() { cat $PATHS/*/stats/reconnects | awk '{ n += $1 } END { print n }'; }

reconnected() { [ "$(connections)" -gt "$1" ] && grep -q '^connected' $PATHS/*/state; }

# The session ends when the server has answered. Until then rnbd-client warns when it is removed (WARN_ON in rnbd_destroy_sessions()).
unmapped() {
	echo normal >/sys/block/rnbd0/rnbd/unmap_device
	lab_until 20 test ! -e /sys/block/rnbd0
	lab_until 20 test ! -e $OF_SESSION
}

client() {
	lab_count_carried
	lab_insmod rnbd-client
	lab_until 30 map || { echo "the disk cannot be mapped"; dmesg | tail -20; exit 1; }
	lab_until 20 test -b /dev/rnbd0
	for depth in "$@"; do
		verify "depth-$depth" randrw "$depth"
	done
	# The connection ends with an error: the same content is there after the reconnection.
	dd if=/dev/urandom of=/tmp/content bs=1M count=8 status=none
	dd if=/tmp/content of=/dev/rnbd0 bs=1M oflag=direct status=none
	before=$(connections)
	echo 1 >"$(echo $PATHS/*/reconnect)"
	lab_until 60 reconnected "$before" || { grep . $PATHS/*/state $PATHS/*/stats/*; dmesg | tail -20; exit 1; }
	dd if=/dev/rnbd0 bs=1M count=8 iflag=direct status=none | cmp - /tmp/content
	verify "after-reconnection" randwrite 16
	unmapped
	# Mapped anew, by a new session.
	lab_until 30 map
	lab_until 20 test -b /dev/rnbd0
	verify "mapped-again" randwrite 4
	unmapped
	# What fio and dd have written and read.
	lab_has_carried $((($# + 2) * 16 + 2 * 8))
	lab_until 20 rmmod rnbd-client rtrs-client
	echo "all right"
}

"$@"
