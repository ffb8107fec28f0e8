#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# ready_crosses server|client: ib_write_bw to memory whose pages are taken again and again. The NIC of the client accepts READY of the
# server's, which nobody has told that its peer is a Faultline.
. /lab/lib.sh
set -eu

command="ib_write_bw --odp -n 500 -F -d $RDMA_DEV -x $GID_INDEX"
if [ "$1" = server ]; then
	exec $command
fi
counters=/sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters
read -r before <"$counters/ready_received"
$command "$PEER_IP"
read -r after <"$counters/ready_received"
read -r refused <"$counters/ready_refused"
echo "$((after - before)) READY accepted, $refused refused"
[ "$after" -gt "$before" ]
echo all right
