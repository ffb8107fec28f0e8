#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# traffic_class server|client: what an address vector asks for is in the packets. The client has the project's NIC; the guest of the
# server, which has rdma_rxe over virtio-net, looks at all that come.
. /lab/lib.sh
set -eu

role=$1
CLASS=106 # DSCP 26, ECT(0)
VLAN=291
LABEL=74565 # 0x12345
# rdma_flow_label_to_udp_sport(): the low 14 bits XOR the bits above them, OR 0xc000.
PORT=0xe341
SEEN=/tmp/traffic_class.seen
END=/tmp/traffic_class.end
OUT=/tmp/traffic_class.out
tagged=10.97.0.$((GUEST_INDEX + 1))

# exchange GID FIELDS PROGRAM OPTION…: in both directions, so that requests and responses come to the server.
exchange() {
	local gid=$1 fields=$2 pid watcher command
	shift 2
	command="$* -F -b -n 20 -d $RDMA_DEV -x $gid --tclass=$CLASS --flow_label=$LABEL"
	if [ "$role" = client ]; then
		lab barrier traffic_class
		$command "$PEER_IP" >$OUT || { cat $OUT; exit 1; }
		return
	fi
	rm -f $END
	watch_packets "$NETDEV" $END fields >$SEEN &
	watcher=$!
	lab_until 20 grep -q watching $SEEN
	$command >$OUT &
	pid=$!
	lab_until 20 lab_listens 18515
	lab barrier traffic_class
	wait $pid || { cat $OUT; exit 1; }
	touch $END
	wait $watcher
	printf 'watching\n%s\n' "$fields" | diff - $SEEN
}

trap 'touch $END; ip link del tagged' EXIT
ip link add link "$NETDEV" name tagged type vlan id $VLAN
ip address add "$tagged/24" dev tagged
ip link set tagged up
lab_until 20 lab_has_gid "$tagged"
lab barrier traffic_class

fields="class $CLASS, UDP checksum 0, port $PORT"
exchange "$GID_INDEX" "$fields" ib_write_bw
exchange "$GID_INDEX" "$fields" ib_read_bw -o 16
exchange "$GID_INDEX" "$fields" ib_send_bw -c UD -s 1024
exchange "$GID_INDEX6" "$fields, flow label 0x12345" ib_write_bw
exchange "$(lab_gid_index "$tagged")" "$fields, VLAN $VLAN, priority 5" ib_write_bw -S 5
lab barrier traffic_class
echo "all right"
