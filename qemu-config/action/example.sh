#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# An example of a script for `cargo lab run` and the action: ibv_rc_pingpong between the first two guests.
set -eu
case $GUEST_INDEX in
0)
	ibv_rc_pingpong -c -d "$RDMA_DEV" -g "$GID_INDEX" &
	lab_until 10 lab_listens 18515
	lab barrier listening
	wait $!
	;;
1)
	lab barrier listening
	ibv_rc_pingpong -c -d "$RDMA_DEV" -g "$GID_INDEX" "$PEER_IP" | tee "$ARTEFACTS/result"
	;;
esac
