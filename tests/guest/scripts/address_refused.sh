#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The second NIC, for which the operator lists addresses, lets this guest not use another one: address_refused ADDRESS
. /lab/lib.sh
set -eu

address=$1
export RDMA_DEV=${RDMA_DEV2:?} GID_INDEX=${GID_INDEX2:?}
refused() { read -r count <"/sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters/tx_bad_address"; }
more() {
	refused
	[ "$count" -gt "$before" ]
}
reported() { dmesg | grep -q "$RDMA_DEV.*GID add failed"; }

ping -q -c 3 -i 0.2 -W 5 "$PEER_IP2" | grep -q ' 0% packet loss'
refused
before=$count
ip address add "$address/32" dev "$NETDEV2" noprefixroute
# The kernel has tried.
lab_until 20 reported
lab_has_no_gid "$address"
! ping -q -c 3 -i 0.2 -W 1 -I "$address" "$PEER_IP2" || exit 1
lab_until 20 more
ip address del "$address/32" dev "$NETDEV2"
# The guest's own address still works.
lab_has_gid "$MY_IP2"
ping -q -c 3 -i 0.2 -W 5 "$PEER_IP2" | grep -q ' 0% packet loss'
echo "all right"
