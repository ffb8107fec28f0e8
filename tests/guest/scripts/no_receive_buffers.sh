#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Without memory for receive buffers (tests/guest/kernel/failing_receive.c) the netdev receives what its ring still has
# buffers for, then nothing; it tries again by a timer, neither never nor without a rest, and goes on when there is memory.
. /lab/lib.sh
set -eu

parameters=/sys/module/failing_receive/parameters
trap 'rmmod failing_receive; ethtool -G "$NETDEV" rx 512' EXIT
ethtool -G "$NETDEV" rx 64
insmod "/lib/modules/$(uname -r)/failing_receive.ko" netdev="$NETDEV"
reached() { ping -q -c 1 -W 0.5 "$PEER_IP"; }
lab_until 10 reached
echo Y >$parameters/fail
ping -q -f -c 200 -W 0.5 "$PEER_IP" || true
lab_fails reached
# It tries each 20 ms, on as many channels as there are. On a busy host the guest may not run for much of the time: some tries are
# awaited, and there may be at most two and a half times as many as the time between the looks has room for.
began=${EPOCHREALTIME//./}
read -r before <$parameters/failed
tried() {
	read -r after <$parameters/failed
	tries=$((after - before))
	[ $tries -ge 20 ]
}
lab_until 60 tried
ms=$(((${EPOCHREALTIME//./} - began) / 1000))
echo "$before failures under traffic, $tries in $ms ms without"
[ "$tries" -le $((ms * $(nproc) / 8 + 2 * $(nproc))) ]
lab_fails reached
echo N >$parameters/fail
lab_until 5 reached
# Each as soon as the one before is answered: however long a busy host stops the guest, no more wait than the ring has buffers for.
ping -q -A -c 200 "$PEER_IP" >/tmp/ping.out || true
cat /tmp/ping.out
grep -q ' 0% packet loss' /tmp/ping.out
echo PASS
