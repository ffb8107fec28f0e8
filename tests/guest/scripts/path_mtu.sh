#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# path_mtu NETDEV_MTU PATH_MTU…, in two guests at once: new connections of these path MTUs, of which the last is the largest
# that frames of this size carry, over IPv4, over IPv6 and behind a VLAN tag, with data that is looked at, and counted
# packets: a path MTU that is not kept shows in their number. The connection manager chooses the largest by itself.
. /lab/lib.sh
set -eu

NETDEV_MTU=$1
shift
MTUS=$*
LARGEST=${MTUS##* }
MESSAGES=20
SIZE=65536
# The largest of rping.
PING_SIZE=65535
OUT=/tmp/path_mtu.out
read -r before </sys/class/net/"$NETDEV"/mtu

# A program in both guests, which meets its peer at a TCP port or by the connection manager; the second guest's has further
# words. The second guest counts.
pair() {
	local server=$1 client=$2 ready=$3 pid first last
	if [ "$GUEST_INDEX" = 0 ]; then
		$server >$OUT &
		pid=$!
		# shellcheck disable=SC2086 # a command and its words
		lab_until 10 $ready
		lab barrier path_mtu
		wait $pid || { cat $OUT; exit 1; }
		lab barrier path_mtu
	else
		lab barrier path_mtu
		lab_sent first
		$client >$OUT || { cat $OUT; exit 1; }
		lab_sent last
		packets=$((last - first))
		lab barrier path_mtu
	fi
}

# At least the data's packets, and not twice as many: acknowledgements are fewer.
counted() {
	local what=$1 bytes=$2 mtu=$3 least
	[ "$GUEST_INDEX" = 1 ] || return 0
	least=$((bytes / mtu))
	echo "$what, MTU $mtu: $packets packets for $bytes bytes"
	[ "$packets" -ge $least ] && [ "$packets" -lt $((2 * least)) ]
}

connected() {
	local what=$1 type=$2 gid=$3 mtu=$4 command
	command="ibv_${type}_pingpong -c -d $RDMA_DEV -g $gid -m $mtu -s $SIZE -n $MESSAGES"
	[ "$type" != srq ] || command+=" -q 1"
	pair "$command" "$command $PEER_IP" "lab_listens 18515"
	counted "$what, $type" $((MESSAGES * SIZE)) "$mtu"
}

# A datagram as long as the path MTU.
datagrams() {
	local what=$1 gid=$2 command
	command="ibv_ud_pingpong -c -d $RDMA_DEV -g $gid -s $LARGEST -n $MESSAGES"
	pair "$command" "$command $PEER_IP" "lab_listens 18515"
	[ "$GUEST_INDEX" = 0 ] || [ "$packets" -ge $MESSAGES ]
}

# The server READs the client's data, and WRITEs it back: half of the data leaves here.
managed() {
	local what=$1 own=$2 peer=$3
	pair "rping -s -v -V -a $own -C 10 -S $PING_SIZE" "rping -c -v -V -a $peer -C 10 -S $PING_SIZE" "lab_listens_cm rping"
	counted "$what, rping" $((10 * PING_SIZE)) "$LARGEST"
}

index_of() {
	index=$(lab_gid_index "$1")
	[ -n "$index" ]
}

ip link set "$NETDEV" mtu "$NETDEV_MTU"
ip link add link "$NETDEV" name tagged type vlan id 291
ip address add "10.97.0.$((GUEST_INDEX + 1))/24" dev tagged
ip link set tagged up mtu "$NETDEV_MTU"
lab_until 10 index_of "10.97.0.$((GUEST_INDEX + 1))"
tagged=$(lab_gid_index "10.97.0.$((GUEST_INDEX + 1))")
ipv6=$(lab_gid_index "$MY_IP6")
ibv_devinfo -d "$RDMA_DEV" | grep -q "active_mtu:.*$LARGEST"
lab barrier path_mtu
for mtu in $MTUS; do
	connected IPv4 rc "$GID_INDEX" "$mtu"
done
connected IPv4 srq "$GID_INDEX" "$LARGEST"
for way in "IPv6 $ipv6" "VLAN $tagged"; do
	read -r what gid <<<"$way"
	connected "$what" rc "$gid" "$LARGEST"
	connected "$what" uc "$gid" "$LARGEST"
	datagrams "$what" "$gid"
done
managed IPv4 "$MY_IP" "$PEER_IP"
managed IPv6 "$MY_IP6" "$PEER_IP6"
managed VLAN "10.97.0.$((GUEST_INDEX + 1))" 10.97.0.1
lab barrier path_mtu
ip link del tagged
ip link set "$NETDEV" mtu "$before"
echo "all right"
