#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# iwarp_addresses, in two guests at once: iWARP connections over addresses and VLANs that are added while the adapter works.
# At the end all is as it was.
. /lab/lib.sh
set -eu

HOST=$((GUEST_INDEX + 1))
# The first guest, which serves.
SERVER=$([ "$GUEST_INDEX" = 0 ] && echo "$MY_IP" || echo "$PEER_IP")

# rping from the second guest to an address of the first.
over() {
	local pid=''
	if [ "$GUEST_INDEX" = 0 ]; then
		rping -s -V -a "$1" -C 20 &
		pid=$!
		lab_until 10 lab_listens_cm rping
		lab barrier listening
		wait "$pid"
	else
		lab barrier listening
		rping -c -v -V -a "$1" -C 20 | grep -q rdma-ping-19: || { echo "no rping over $1"; exit 1; }
		echo "rping over $1"
	fi
	lab barrier over
}

ip address add "10.88.0.$HOST/24" dev "$NETDEV"
over 10.88.0.1
ip address add "fd88::$HOST/64" dev "$NETDEV" nodad
over fd88::1
ip link add link "$NETDEV" name tagged type vlan id 7
ip address add "10.89.0.$HOST/24" dev tagged
ip link set tagged up
over 10.89.0.1
ip link delete tagged
ip address delete "fd88::$HOST/64" dev "$NETDEV"
ip address delete "10.88.0.$HOST/24" dev "$NETDEV"
lab barrier restored
over "$SERVER"
echo "all right"
