#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# late_connections COMMAND…: runs a command whose TCP connections over IPv4 begin half a second late.
set -eu

tc qdisc replace dev "$NETDEV" root handle 1: prio bands 4
trap 'tc qdisc delete dev "$NETDEV" root' EXIT
# Only frames that the filter names are in the last band.
tc qdisc add dev "$NETDEV" parent 1:4 netem delay 500ms
# A SYN without ACK; the header of IP has no options.
tc filter add dev "$NETDEV" parent 1: protocol ip u32 match ip protocol 6 0xff match u8 0x02 0x12 at 33 flowid 1:4
"$@"
