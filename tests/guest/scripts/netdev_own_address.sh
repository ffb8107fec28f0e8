#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A guest gives its interface no other address than that of its NIC, neither a new one nor its neighbour's, and frames from its
# neighbour's address do not leave.
. /lab/lib.sh
set -eu

refused() { ethtool -S "$NETDEV" | sed -n 's/^ *tx_bad_source: //p'; }
works() {
	lab_until 20 ping -q -c 1 -W 0.3 "$PEER_IP"
	ping -q -c 5 -i 0.02 -W 5 "$PEER_IP" | grep -q ' 0% packet loss'
}

old=$(cat "/sys/class/net/$NETDEV/address")
works
peer=$(ip neigh show "$PEER_IP" dev "$NETDEV" | sed -n 's/.*lladdr \([^ ]*\).*/\1/p')
echo "own $old, peer $peer"
[ -n "$peer" ]
ip link set "$NETDEV" down
for address in 02:00:00:00:77:01 "$peer"; do
	lab_fails ip link set "$NETDEV" address "$address" 2>/tmp/refusal
	grep -q 'not supported' /tmp/refusal
	[ "$(cat "/sys/class/net/$NETDEV/address")" = "$old" ]
done
ip link set "$NETDEV" up
before=$(refused)
works
[ "$(refused)" = "$before" ]
# A virtual interface above it has the neighbour's address.
ip link add link "$NETDEV" name stolen address "$peer" type macvlan mode private
ip link set stolen up
ip address add 10.99.99.1/24 dev stolen
ping -q -c 3 -i 0.2 -W 1 -I stolen 10.99.99.2 || true
ip link delete stolen
# A switch of another process can't tell whose address it is.
[ "$EMULATORS" -gt 1 ] || [ "$(refused)" -gt "$before" ]
works
echo "all right"
