#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Two ping-pongs of rdma-core, one after the other: second_try.sh server|client SECONDS OPTION…
# The first one must fail: it is killed after so many seconds. The second one must succeed, with the same options.
set -u
role=$1 seconds=$2
shift 2
options=(-c -d "$RDMA_DEV" -g "$GID_INDEX" "$@")
[ "$role" = server ] || options+=("$PEER_IP")

if timeout --signal=KILL "$((seconds * ${LAB_TIME_FACTOR:-1}))" ibv_rc_pingpong "${options[@]}"; then
	echo "the first ping-pong of the $role succeeds" >&2
	exit 1
fi
if [ "$role" = server ]; then
	exec ibv_rc_pingpong -p 18600 "${options[@]}"
fi
# The server may still wait for the end of its first one.
lab_until 30 ibv_rc_pingpong -p 18600 "${options[@]}"
