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
read -r before <$parameters/failed
sleep 1
read -r after <$parameters/failed
tries=$((after - before))
echo "$before failures under traffic, $tries in a second without"
# Each 20 ms, on as many channels as there are.
[ $tries -ge 10 ] && [ $tries -le $((125 * $(nproc))) ]
lab_fails reached
echo N >$parameters/fail
lab_until 5 reached
ping -q -c 200 -i 0.005 "$PEER_IP" | tee /dev/stderr | grep -q ' 0% packet loss'
echo PASS
