#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Few requests, so that each finds the device's engine asleep. The programs go on in the background.
#
#	paced_load server	returns when the client may start
#	paced_load client	returns when packets flow, and pings the other guest beside
#	paced_load failed	waits for the end of this guest's program, which must be an error
. /lab/lib.sh
set -eu

STATUS=/tmp/status

# Ten milliseconds or more between two requests.
load() {
	(
		set +e
		ib_send_bw -d "$RDMA_DEV" -x "$GID_INDEX" -F -D 300 -s 4096 -t 1 \
			--rate_limit=20 --rate_units=p --rate_limit_type=SW "$@"
		echo $? >$STATUS
	) >/dev/null 2>&1 &
}

case $1 in
server)
	load
	lab_until 10 lab_listens 18515
	;;
client)
	load "$PEER_IP"
	lab_flows 20
	ping -q -i 0.1 "$PEER_IP" >/dev/null 2>&1 &
	;;
failed)
	# As fatal_event waits.
	lab_until 100 test -s $STATUS
	[ "$(cat $STATUS)" != 0 ]
	;;
*) exit 2 ;;
esac
