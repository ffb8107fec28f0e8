#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Packets of queue pairs are counted apart, by type and by hand, while pingpongs run between programs of one guest.
. /lab/lib.sh
set -u

link=$RDMA_DEV/1
pingpong="ibv_rc_pingpong -d $RDMA_DEV -g $GID_INDEX"
shown() { rdma statistic qp show link "$link"; }
fail() {
	echo "$1"
	shown
	exit 1
}

rdma statistic qp set link "$link" auto type on || fail "no counters by type"
before=0 after=0
lab_sent before
$pingpong -n 300 >/dev/null &
server=$!
lab_until 10 lab_listens 18515
# proves: counter_alloc_stats, counter_init
shown | grep -q "type RC" || fail "the queue pair has no counter"
$pingpong -n 300 "$MY_IP" >/dev/null || fail "no pingpong"
wait $server || fail "no pingpong"
lab_sent after
# A message and its acknowledgement, from either side.
[ $((after - before)) -ge 600 ] || fail "the port has counted $before to $after"
# proves: counter_dealloc
shown | grep -q "type RC" && fail "a counter is left over"
rdma statistic qp set link "$link" auto off || fail "no end of counters by type"

# Without end: a queue pair that goes takes its counter along.
server='' client=''
trap 'kill $server $client; wait' EXIT
$pingpong -n 100000000 >/dev/null &
server=$!
lab_until 10 lab_listens 18515
lqpn=$(rdma resource show qp link "$link" | sed -n 's/.* lqpn \([0-9]*\) .*type RC .*/\1/p' | head -1)
rdma statistic qp bind link "$link" lqpn "$lqpn" || fail "can't bind $lqpn"
set_of() { shown | sed -n 's/.* cntn \([0-9]*\) .*/\1/p'; }
cntn=$(set_of)
[ -n "$cntn" ] || fail "no counter"
$pingpong -n 100000000 "$MY_IP" >/dev/null &
client=$!
counts() { shown | grep -q "tx_roce_packets [1-9]"; }
# proves: counter_bind_qp, counter_update_stats
lab_until 10 counts || fail "the counter of $lqpn does not count"
shown | grep -q "tx_packets [1-9]" && fail "the counter of $lqpn counts frames"
rdma statistic qp unbind link "$link" cntn "$cntn" lqpn "$lqpn" || fail "can't unbind"
# proves: counter_unbind_qp
[ -z "$(set_of)" ] || fail "it is still bound"
kill -0 $client && kill -0 $server && echo PASS
