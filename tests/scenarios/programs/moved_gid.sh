#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# rdma-core's ping-pong over a connection whose server's GID moves to other indices, then over a new connection with the index that
# the GID has then: moved_gid.sh server|client MOVES
set -u
moves=$2
port=18600

moved() {
	local lines=()
	[ ! -e /run/lab.gid_moves ] || mapfile -t lines </run/lab.gid_moves
	[ "${#lines[@]}" -ge "$moves" ]
}

pingpong() {
	ibv_rc_pingpong -c -d "$RDMA_DEV" "$@"
}

if [ "$1" = client ]; then
	pingpong -g "$GID_INDEX" "$PEER_IP" || exit
	# The server listens again when its GID has moved.
	lab_until 40 pingpong -g "$GID_INDEX" -p "$port" "$PEER_IP"
	exit
fi

pingpong -g "$GID_INDEX" || exit
lab_until 20 moved || exit
cat /run/lab.gid_moves
# Each move is one to another index. If the first connection has ended before the last move, that may be the first index again.
while read -r from to; do
	if [ "$from" = "$to" ]; then
		echo "the GID of $MY_IP has index $to as before" >&2
		exit 1
	fi
done </run/lab.gid_moves
index=$(lab_gid_index "$MY_IP")
pingpong -g "$index" -p "$port"
