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

over_rdma() {
	LD_PRELOAD=$PRELOAD "$@"
}

# Runs a client, whose output goes to $LOG.
client() {
	lab_sent before
	over_rdma "$@" >$LOG || { cat $LOG; exit 1; }
	lab_sent after
	cat $LOG
}

# So many bytes, which the client has counted, have gone over RDMA: no packet carries more than the path MTU.
carried() {
	local mtu
	mtu=$(ibv_devinfo -d "$RDMA_DEV" | awk '/active_mtu/ { print $2 }')
	echo "$1 bytes in $((after - before)) RoCE packets of up to $mtu bytes"
	if [ "$1" = 0 ] || [ $(((after - before) * mtu)) -lt "$1" ]; then
		echo "they went another way"
		exit 1
	fi
}

value() {
	sed -n "s/^$1=//p" $LOG
}

# Runs a server until the client has ended, if it does not end by itself then; its output goes to $LOG.
server() {
	over_rdma "$@" >$LOG 2>&1 &
	lab barrier programs_rsockets
	kill $! 2>/dev/null || true
	wait $! || true
	cat $LOG
}

# Of the first report of iperf.
bytes() {
	awk -F , '/,/ { print $8; exit }' $LOG
}

case $1.$2 in
server.iperf)
	server iperf -s -B "$MY_IP" -y C
	[ "$(bytes)" = $SIZE ]
	;;
client.iperf)
	client iperf -c "$PEER_IP" -n $SIZE -y C
	[ "$(bytes)" = $SIZE ]
	carried $SIZE
	;;
# With -f one process serves all clients: support of rsockets for fork() is limited (rsocket(7)).
server.netperf) server netserver -D -f -4 -L "$MY_IP" ;;
client.netperf)
	client netperf -4 -H "$PEER_IP" -t "$3" -l 2 -P 0 -- \
		-k TRANSACTION_RATE,LOCAL_BYTES_SENT,LOCAL_BYTES_RECVD,REMOTE_BYTES_SENT,REMOTE_BYTES_RECVD
	[ "$(value LOCAL_BYTES_SENT)" = "$(value REMOTE_BYTES_RECVD)" ]
	[ "$(value LOCAL_BYTES_RECVD)" = "$(value REMOTE_BYTES_SENT)" ]
	carried "$(value LOCAL_BYTES_SENT)"
	;;
esac
[ "$1" = server ] || lab barrier programs_rsockets
echo "all right"
