#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# qperf between two guests, over connections of the connection manager: without it, qperf makes none on RoCE.
#
#	apps_qperf server
#	apps_qperf client TEST…
#
# qperf verifies the data of its tests ver_*; the others must have moved data over RoCE.
. /lab/lib.sh
set -eu

# One test of a second. qperf 0.4.11 tells the client its port before it listens there (cm_open_server() in rdma.c): a
# connection that is refused is made again.
measure() {
	local try
	for try in 1 2 3 4 5; do
		if qperf -cm 1 -t 1 "$PEER_IP" "$1" >/tmp/qperf.log 2>&1; then
			cat /tmp/qperf.log
			return
		fi
		cat /tmp/qperf.log
		grep -q 'Event rejected' /tmp/qperf.log || return 1
		echo "refused the $try. time"
	done
	return 1
}

client() {
	local test before after
	for test in "$@"; do
		lab_sent before
		measure "$test"
		lab_sent after
		echo "$((after - before)) RoCE packets"
		[ "$after" -ge $((before + 20)) ]
		# No measured value is zero.
		grep -Eq '^ +(bw|latency|msg_rate) += +[0-9.]*[1-9]' /tmp/qperf.log
	done
	qperf "$PEER_IP" quit >/dev/null
	echo "all right"
}

case $1 in
server) exec qperf ;;
client) shift && client "$@" ;;
esac
