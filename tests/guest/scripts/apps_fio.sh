#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# fio's engine "rdma" between two guests.
#
#	apps_fio server VERB
#	apps_fio client write|read|send
#
# Who waits for the connection is the one that reads (rw=read), whatever goes over it. With RDMA WRITE and READ the engine
# verifies no data, because neither side's buffers are those that the other one has filled. Messages are verified by who
# gets them. Connections of the engine have no RNR retries (fio_rdmaio_connect() leaves rnr_retry_count at 0): a message that
# comes before a receive ends them. So messages are sent slowly, and there are as many receives as messages.
. /lab/lib.sh
set -eu

PORT=18720
BLOCK=65536
COUNT=400
MESSAGES=30

common() {
	local verb=$1 count=$COUNT
	shift
	[ "$verb" != send ] || count=$MESSAGES
	fio --name="$verb" --ioengine=rdma --port=$PORT --bs=$BLOCK --size=$((count * BLOCK)) "$@"
}

server() {
	case $1 in
	send) common send --rw=read --iodepth=$MESSAGES --verify=crc32c --verify_fatal=1 ;;
	*) common "$1" --rw=read --iodepth=16 ;;
	esac
}

# All of it goes over RoCE: this number of packets of up to 4096 octets, sent by the writer and received by the reader.
client() {
	local counter=tx count=$COUNT before after
	case $1 in
	write) set -- "$1" --verb=write --iodepth=8 ;;
	read) set -- "$1" --verb=read --iodepth=8 && counter=rx ;;
	send) set -- "$1" --verb=send --iodepth=1 --rate_iops=20 --verify=crc32c --do_verify=0 && count=$MESSAGES ;;
	esac
	counter=/sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters/${counter}_roce_packets
	read -r before <"$counter"
	common "$@" --rw=write --hostname="$PEER_IP"
	read -r after <"$counter"
	echo "$((after - before)) RoCE packets"
	[ "$after" -ge $((before + count * BLOCK / 4096)) ]
	echo "all right"
}

"$@"
