#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Traffic of one guest until its device goes: a pingpong with itself through the device, and pings to the other guest. The
# file /run/flows appears when both flow. The status is the pingpong's.
. /lab/lib.sh
set -u

answered() { read -r "$1" <"/sys/class/net/$NETDEV/statistics/rx_packets"; }
pong() { exec ibv_rc_pingpong -d "$RDMA_DEV" -g "$GID_INDEX" -n 1000000000 "$@"; }
flows() {
	local now=0 last=0
	lab_sent now
	answered last
	[ "$now" -ge $((before + 200)) ] && [ "$last" -ge $((first + 20)) ]
}

before=0 first=0
lab_sent before
answered first
pong -e &
serving=$!
lab_until 10 lab_listens 18515
pong "$MY_IP" &
sending=$!
ping -q -f "$PEER_IP" >/dev/null 2>&1 &
lab_until 20 flows && : >/run/flows
wait $serving
status=$?
wait $sending && exit 0
exit $status
