#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# rdma-core's ping-pong over a reliable connection, its data checked: pingpong.sh server|client OPTION…
set -u
role=$1
shift
options=(-c -d "$RDMA_DEV" -g "$GID_INDEX" "$@")
[ "$role" = server ] || options+=("$PEER_IP")
exec ibv_rc_pingpong "${options[@]}"
