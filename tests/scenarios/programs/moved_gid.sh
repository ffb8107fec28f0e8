#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# rdma-core's ping-pong over a connection whose server's GID moves to another index, which ends it, then over a new connection with the
# index that the GID has then: moved_gid.sh server|client MOVES
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

# The connection that ends. Of two programs that send to each other in turn, one may wait for a message, and is told nothing.
first() {
	timeout 15 ibv_rc_pingpong -c -d "$RDMA_DEV" -g "$GID_INDEX" "$@"
}

if [ "$1" = client ]; then
	if first "$PEER_IP"; then
		echo "the connection has outlived the entry of its GID" >&2
		exit 1
	fi
	# The server listens again when its GID has moved.
	lab_until 40 pingpong -g "$GID_INDEX" -p "$port" "$PEER_IP"
	exit
fi

first
lab_until 20 moved || exit
cat /run/lab.gid_moves
while read -r from to; do
	if [ "$from" = "$to" ]; then
		echo "the GID of $MY_IP has index $to as before" >&2
		exit 1
	fi
done </run/lab.gid_moves
index=$(lab_gid_index "$MY_IP")
pingpong -g "$index" -p "$port"
