#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Programs for TCP sockets between two guests. librdmacm's preloaded library turns their sockets into rsockets:
#
#	programs_rsockets server|client iperf
#	programs_rsockets server|client netperf TEST
#
# The client fails if its packets cannot have carried the data that it has counted.
. /lab/lib.sh
set -eu

PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so
LOG=/run/rsockets.log
# Bytes of iperf's stream.
SIZE=$((50 << 20))
before=0 after=0

# Runs a client, whose output goes to $LOG.
client() {
	lab_sent before
	LD_PRELOAD=$PRELOAD "$@" >$LOG || { cat $LOG; exit 1; }
	lab_sent after
	cat $LOG
}

# So many bytes, which the client has counted, have gone over RDMA: no packet carries more of them than the path MTU, or than LIMIT:
# carried BYTES [LIMIT]
carried() {
	local limit=${2:-}
	[ -n "$limit" ] || limit=$(ibv_devinfo -d "$RDMA_DEV" | awk '/active_mtu/ { print $2 }')
	echo "$1 bytes in $((after - before)) RoCE packets of up to $limit bytes"
	if [ "$1" = 0 ] || [ $(((after - before) * limit)) -lt "$1" ]; then
		echo "they went another way"
		exit 1
	fi
}

value() {
	sed -n "s/^$1=//p" $LOG
}

# One side of netperf has received the other's data, except up to this number of bytes: received SENT RECEIVED EXCEPT
received() {
	local missing=$(($(value "$1") - $(value "$2")))
	if [ $missing -lt 0 ] || [ $missing -gt "$3" ]; then
		echo "$1 and $2 differ by $missing bytes"
		exit 1
	fi
}

# Runs a server until the client has ended and a condition is true, if it does not end by itself then; its output goes to $LOG:
# server CONDITION COMMAND…
server() {
	local condition=$1
	shift
	# Not in a function: `kill` would end the shell that runs it, and leave the server.
	LD_PRELOAD=$PRELOAD "$@" >$LOG 2>&1 &
	lab barrier programs_rsockets
	lab_until 20 "$condition"
	kill $! 2>/dev/null || true
	wait $! || true
	cat $LOG
	lab_fails lab_listens_cm "$1"
}

# Of the first report of iperf, if there is one.
bytes() {
	awk -F , '/,/ { print $8; found = 1; exit } END { exit !found }' $LOG
}

case $1.$2 in
server.iperf)
	server bytes iperf -s -B "$MY_IP" -y C
	[ "$(bytes)" = $SIZE ]
	;;
client.iperf)
	client iperf -c "$PEER_IP" -n $SIZE -y C
	[ "$(bytes)" = $SIZE ]
	carried $SIZE
	;;
# With -f one process serves all clients: support of rsockets for fork() is limited (rsocket(7)).
server.netperf) server true netserver -D -f -4 -L "$MY_IP" ;;
client.netperf)
	client netperf -4 -H "$PEER_IP" -t "$3" -l 2 -P 0 -- \
		-k TRANSACTION_RATE,LOCAL_BYTES_SENT,LOCAL_BYTES_RECVD,REMOTE_BYTES_SENT,REMOTE_BYTES_RECVD
	case $3 in
	# The client stops at a time: a request or a response, which has one byte, may be under way then. Each has its own packet.
	TCP_RR) except=1 limit=1 ;;
	*) except=0 limit= ;;
	esac
	received LOCAL_BYTES_SENT REMOTE_BYTES_RECVD $except
	received REMOTE_BYTES_SENT LOCAL_BYTES_RECVD $except
	carried "$(value LOCAL_BYTES_SENT)" $limit
	;;
esac
[ "$1" = server ] || lab barrier programs_rsockets
echo "all right"
