#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# An interface works with another address of its own, without a single refused frame, and not with its neighbour's, whose
# traffic it does not take.
. /lab/lib.sh
set -eu

refused() { ethtool -S "$NETDEV" | sed -n 's/^ *tx_bad_source: //p'; }
become() {
	ip link set "$NETDEV" down
	ip link set "$NETDEV" address "$1"
	ip link set "$NETDEV" up
}
works() {
	lab_until 20 ping -q -c 1 -W 0.3 "$PEER_IP"
	ping -q -c 5 -i 0.02 -W 5 "$PEER_IP" | grep -q ' 0% packet loss'
}

old=$(cat "/sys/class/net/$NETDEV/address")
works
peer=$(ip neigh show "$PEER_IP" dev "$NETDEV" | sed -n 's/.*lladdr \([^ ]*\).*/\1/p')
echo "own $old, peer $peer"
[ -n "$peer" ]
before=$(refused)
become 02:00:00:00:77:01
works
[ "$(refused)" = "$before" ]
become "$peer"
lab_fails ping -q -c 3 -i 0.2 -W 1 "$PEER_IP"
# A switch of another process can't tell whose address it is.
[ "$EMULATORS" -gt 1 ] || [ "$(refused)" -gt "$before" ]
become "$old"
before=$(refused)
works
[ "$(refused)" = "$before" ]
echo "all right"
