#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Frames that the device would refuse, which would stop a queue: the driver segments, sums or drops them, and the
# interface stays up.
#
#	netdev_strange_frames server	has a second interface behind two VLAN tags until the client sends its stream
#	netdev_strange_frames client	sends the frames, and frames as long as those with two tags may be
. /lab/lib.sh
set -eu

# An interface behind two VLAN tags, with this address.
tagged() {
	ip link add link "$NETDEV" name outer type vlan proto 802.1ad id 5
	ip link set outer up
	ip link add link outer name inner type vlan id 6
	ip link set inner up
	ip address add "$1/24" dev inner
}

server() {
	tagged 10.98.0.1
	lab stream-receive 5001
	ip link del outer
}

changes() { cat "/sys/class/net/$NETDEV/carrier_changes"; }
dropped() { cat "/sys/class/net/$NETDEV/statistics/tx_dropped"; }

client() {
	local before lost
	ping -q -c 1 "$PEER_IP"
	before=$(changes)
	lost=$(dropped)
	send_strange_frames "$NETDEV" | sort | uniq -c | tee /tmp/sent
	[ "$(grep -c ' 5 .*sent' /tmp/sent)" -ge 4 ]
	some_dropped() { [ "$(dropped)" -gt "$lost" ]; }
	lab_until 10 some_dropped
	ping -q -c 3 -i 0.2 -W 2 "$PEER_IP"
	tagged 10.98.0.2
	ping -q -c 3 -i 0.2 -W 5 -M "do" -s 1472 10.98.0.1
	ip link del outer
	[ "$(changes)" = "$before" ]
	lab stream-send "$PEER_IP:5001" 65536
	echo "all right"
}

"$@"
