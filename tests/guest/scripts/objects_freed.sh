#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Kills programs that hold objects of each kind; the kernel then has as many as before. It does not list address handles,
# but the device frees no protection domain that has any (IN_USE): once the domains are freed, all objects are.
. /lab/lib.sh
set -u

held() { rdma resource show "$RDMA_DEV" | sed 's/.*: //'; }
of() { echo "$2" | grep -o "\b$1 [0-9]*" | cut -d' ' -f2; }
# pong TYPE PORT [ADDRESS]
pong() {
	local type=$1 port=$2
	shift 2
	exec "ibv_${type}_pingpong" -p "$port" -d "$RDMA_DEV" -g "$GID_INDEX" -n 100000000 "$@" >/dev/null
}

before=$(held)
programs=()
for way in 'rc 18515' 'srq 18516' 'ud 18517'; do
	read -r type port <<<"$way"
	pong "$type" "$port" &
	programs+=($!)
	lab_until 10 lab_listens "$port"
	pong "$type" "$port" "$MY_IP" &
	programs+=($!)
done
lab_flows 1000
during=$(held)
for kind in pd cq qp mr ctx srq; do
	[ "$(of $kind "$during")" -gt "$(of $kind "$before")" ] || { echo "no $kind: $before, $during"; exit 1; }
done
kill -KILL "${programs[@]}"
freed() { [ "$(held)" = "$before" ]; }
lab_until 10 freed || { echo "before: $before, after: $(held)"; exit 1; }
