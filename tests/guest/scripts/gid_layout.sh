#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A NIC with RoCE v1 entries in its GID table: each address has an entry of RoCE v1 and one of RoCE v2, the IPv4 address has the latter
# at index 3, and only entries of RoCE v2 can be used.
. /lab/lib.sh
set -eu

PORT=/sys/class/infiniband/$RDMA_DEV/ports/1
DEFAULT=3
OUT=/tmp/gid_layout.out

entry() {
	local gid type
	read -r gid <"$PORT/gids/$1"
	read -r type <"$PORT/gid_attrs/types/$1"
	echo "$gid $type"
}

# A pingpong between two programs of this guest with an entry of the table.
pingpong() {
	local command="ibv_rc_pingpong -d $RDMA_DEV -g $1 -n 10" server status
	$command >$OUT 2>&1 &
	server=$!
	lab_until 10 lab_listens 18515
	status=0
	$command "$MY_IP" >>$OUT 2>&1 || status=$?
	wait $server || status=$?
	return $status
}

# shellcheck disable=SC2086 # four words
own=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${MY_IP//./ })
[ "$(lab_gid_index "$MY_IP")" = $DEFAULT ]
[ "$(entry 3)" = "$own RoCE v2" ]
[ "$(entry 2)" = "$own IB/RoCE v1" ]
[[ "$(entry 0)" = fe80:*" IB/RoCE v1" ]]
[ "$(entry 1)" = "$(entry 0 | sed 's,IB/RoCE v1,RoCE v2,')" ]

pingpong $DEFAULT
lab_fails pingpong 2
# The queue pair is refused, before a packet could be sent.
grep -q "Failed to modify QP to RTR" $OUT

# The connection manager takes RoCE v2.
rping -s -a "$MY_IP" -C 3 &
server=$!
lab_until 10 lab_listens_cm rping
rping -c -a "$MY_IP" -C 3
wait $server

# An address takes both of its entries along.
types() {
	cat "$PORT"/gid_attrs/types/* 2>/dev/null | sort | uniq -c | xargs
}
before=$(types)
ip address add 10.98.7.1/24 dev "$NETDEV"
lab_until 10 lab_has_gid 10.98.7.1
index=$(lab_gid_index 10.98.7.1)
pingpong "$index"
ip address del 10.98.7.1/24 dev "$NETDEV"
unchanged() {
	[ "$(types)" = "$before" ]
}
lab_until 10 unchanged
echo PASS
