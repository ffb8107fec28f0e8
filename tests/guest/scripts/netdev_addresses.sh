#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The device keeps frames to other groups and addresses away, and gives those that an interface asks for.
#
#	netdev_addresses server	sends to a group until the client sends its stream, and has an address for the client's
#				second interface
#	netdev_addresses client	asks for the group in each way
. /lab/lib.sh
set -eu

GROUP=239.5.6.7
GROUP_MAC=01:00:5e:05:06:07

server() {
	local sender status=0
	ip address add 10.99.0.1/24 dev "$NETDEV"
	ping -q -i 0.02 -I "$NETDEV" $GROUP >/dev/null &
	sender=$!
	lab stream-receive 5001 || status=$?
	kill $sender
	ip address del 10.99.0.1/24 dev "$NETDEV"
	exit $status
}

stat() { ethtool -S "$NETDEV" | sed -n "s/^ *$1: //p"; }
promiscuity() { ip -d link show "$NETDEV" | sed -n 's/.* promiscuity \([0-9]*\) .*/\1/p'; }

# What the server sends is kept away; or, once the filter has changed, it comes and nothing is kept away.
more_away() { [ "$(stat rx_filtered)" -ge "$1" ]; }
kept_away() { lab_until 20 more_away $(($(stat rx_filtered) + 15)); }
received() { read -r got <"/sys/class/net/$NETDEV/statistics/rx_packets"; }
more() {
	received
	[ "$got" -ge "$1" ]
}
passes() {
	local away got
	away=$(stat rx_filtered)
	received
	lab_until 5 more $((got + 15)) && [ "$(stat rx_filtered)" -le $((away + 1)) ]
}
comes() { lab_until 20 passes; }

client() {
	local many
	kept_away
	ip maddress add $GROUP_MAC dev "$NETDEV"
	comes
	ip maddress del $GROUP_MAC dev "$NETDEV"
	kept_away
	ip link set "$NETDEV" allmulticast on
	comes
	ip link set "$NETDEV" allmulticast off
	kept_away
	# More groups than there is room for, until they are removed.
	join_groups "$NETDEV" 150 >/tmp/joined &
	many=$!
	lab_until 60 grep joined /tmp/joined
	comes
	kill $many
	wait $many || true
	kept_away
	# A second interface with an address of its own, without all the others.
	ip link add link "$NETDEV" name second type macvlan mode bridge
	ip address add 10.99.0.2/24 dev second
	ip link set second up
	ping -q -c 3 -i 0.2 -W 5 -I second 10.99.0.1
	[ "$(promiscuity)" = 0 ]
	kept_away
	ip link del second
	lab stream-send "$PEER_IP:5001" 65536
	echo "all right"
}

"$@"
