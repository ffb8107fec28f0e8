#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A program that waits for the device's events gets those of addresses that are added, and of the link.
. /lab/lib.sh
set -u

EVENTS=/tmp/events
ibv_asyncwatch -d "$RDMA_DEV" >$EVENTS &
pid=$!
fail() {
	echo "$1"
	cat $EVENTS
	kill $pid
	exit 1
}
got() { lab_until 10 grep -q "event_type $1 .*, port 1$" $EVENTS || fail "no $1"; }

lab_until 10 grep -q "^$RDMA_DEV: async event FD" $EVENTS || fail "it does not start"
sleep 0.5
grep -q event_type $EVENTS && fail "an event of nothing"
ip address add 10.99.1.1/24 dev "$NETDEV"
got IBV_EVENT_GID_CHANGE
ip address del 10.99.1.1/24 dev "$NETDEV"
grep -q PORT_ $EVENTS && fail "the link has not changed"
downed=/sys/class/infiniband/$RDMA_DEV/ports/1/counters/link_downed
read -r before <"$downed"
ip link set "$NETDEV" down
# proves: IBV_EVENT_PORT_ERR, IB_DEVICE_SHUTDOWN_PORT
got IBV_EVENT_PORT_ERR
grep -q PORT_ACTIVE $EVENTS && fail "the link is not up"
ip link set "$NETDEV" up
# proves: IBV_EVENT_PORT_ACTIVE, IB_DEVICE_PORT_ACTIVE_EVENT
got IBV_EVENT_PORT_ACTIVE
read -r after <"$downed"
[ $((after - before)) = 1 ] || fail "link_downed was $before and is $after"
lab_until 10 ping -c 1 -W 1 "$PEER_IP" || fail "no link"
kill $pid && echo PASS
