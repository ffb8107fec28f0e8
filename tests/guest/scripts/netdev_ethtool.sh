#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# What ethtool reads is true. Rings get another size and interrupts are moderated, under a link that works before and after.
. /lab/lib.sh
set -eu

rx_packets() { ethtool -S "$NETDEV" | sed -n 's/^ *rx_packets: //p'; }
ring() { ethtool -g "$NETDEV" | sed '1,/^Current/d' | grep -E '^(RX|TX):' | xargs; }
works() { ping -q -c 3 -i 0.02 -s 20000 "$PEER_IP"; }

ethtool -i "$NETDEV" | tee /dev/stderr | grep -q '^driver: faultline$'
ethtool "$NETDEV" | tee /dev/stderr | grep -q 'Link detected: yes'
ethtool "$NETDEV" | grep -q 'Speed: 100000Mb/s'
ethtool -T "$NETDEV" | grep -q software-transmit
before=$(rx_packets)
ip_before=$(cat "/sys/class/net/$NETDEV/statistics/rx_packets")
works
[ "$(rx_packets)" -ge $((before + 30)) ]
[ "$(cat "/sys/class/net/$NETDEV/statistics/rx_packets")" -ge $((ip_before + 30)) ]

ethtool -g "$NETDEV"
[ "$(ring)" = 'RX: 512 TX: 512' ]
ethtool -G "$NETDEV" rx 1000 tx 64
[ "$(ring)" = 'RX: 1024 TX: 64' ]
works
lab_fails ethtool -G "$NETDEV" tx 63
lab_fails ethtool -G "$NETDEV" rx 1000000
[ "$(ring)" = 'RX: 1024 TX: 64' ]
works

moderation() { ethtool -c "$NETDEV" | tee /dev/stderr | grep -E '^(rx|tx)-(usecs|frames):' | xargs; }
at_once() { ethtool -C "$NETDEV" rx-usecs 0 rx-frames 0 tx-usecs 0 tx-frames 0; }
# Both: any notice makes the driver look at both queues.
late() { ethtool -C "$NETDEV" rx-usecs 60000 rx-frames 64 tx-usecs 60000 tx-frames 64; }
# The Nth shortest of seven round trips, in milliseconds, one each SECONDS: of_seven N SECONDS. Those of late interrupts
# take more than a tenth.
of_seven() { ping -c 7 -i "$2" "$PEER_IP" | sed -n 's/.* time=\([0-9]*\).*/\1/p' | sort -n | sed -n "$1p"; }
# By the median: any other packet may end a wait early, and a busy host make another one longer. It may make all longer:
# what is compared was measured one after the other, again if it had to be.
median() { of_seven 4 0.2; }
waits() {
	local fast slow resized again
	at_once
	fast=$(of_seven 1 0.02)
	late
	slow=$(median)
	ethtool -G "$NETDEV" rx "$1"
	resized=$(median)
	at_once
	again=$(of_seven 1 0.02)
	echo "ms: $fast, $slow, $resized, then $again ms"
	[ -n "$fast" ] && [ -n "$slow" ] && [ -n "$resized" ] && [ -n "$again" ] || exit 1
	[ "$slow" -ge $((fast + 25)) ] && [ "$resized" -ge $((fast + 25)) ] && [ "$again" -le $((slow - 25)) ]
}

[ "$(moderation)" = 'rx-usecs: 0 rx-frames: 0 tx-usecs: 0 tx-frames: 0' ]
waits 512 || waits 1024 || waits 512
late
[ "$(moderation)" = 'rx-usecs: 60000 rx-frames: 64 tx-usecs: 60000 tx-frames: 64' ]
lab_fails ethtool -C "$NETDEV" rx-usecs 0
lab_fails ethtool -C "$NETDEV" adaptive-rx on
ethtool -C "$NETDEV" rx-usecs 0 rx-frames 0 tx-usecs 50 tx-frames 16
works
[ "$(moderation)" = 'rx-usecs: 0 rx-frames: 0 tx-usecs: 50 tx-frames: 16' ]
at_once

ip link set "$NETDEV" down
ethtool -G "$NETDEV" rx 512 tx 512
ethtool "$NETDEV" | grep -q 'Link detected: no'
ip link set "$NETDEV" up
[ "$(ring)" = 'RX: 512 TX: 512' ]
lab_until 10 ping -q -c 1 -W 0.3 "$PEER_IP"
works
echo "all right"
