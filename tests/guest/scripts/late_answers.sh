#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# late_answers COMMAND…: runs a command while each frame arrives 100 ms late.
set -eu

repair() {
	tc qdisc delete dev "$NETDEV" ingress
	ip link delete arriving
}

# netem is for frames that leave an interface.
ip link add arriving type ifb
trap repair EXIT
ip link set arriving up
tc qdisc replace dev arriving root netem delay 100ms limit 10000
tc qdisc add dev "$NETDEV" ingress
tc filter add dev "$NETDEV" parent ffff: matchall action mirred egress redirect dev arriving
"$@"
