#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# port_counters, in two guests at once: the files by which monitoring reads a port, without tools for management packets. They count
# the RoCE packets of a known transfer on both sides, and no others.
. /lab/lib.sh
set -eu

PORT=/sys/class/infiniband/$RDMA_DEV/ports/1
# The names that the node exporter of Prometheus reads.
COUNTERS="VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors
	multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets
	port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors port_xmit_data
	port_xmit_discards port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets unicast_xmit_packets"
# The names of mlx5 for a port of RoCE.
HW_COUNTERS="duplicate_request implied_nak_seq_err local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets out_of_buffer
	out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error req_remote_access_errors req_remote_invalid_request
	resp_cqe_error resp_cqe_flush_error resp_local_length_error resp_remote_access_errors rnr_nak_retry_err
	rp_cnp_handled rp_cnp_ignored rx_atomic_requests rx_icrc_encapsulated rx_read_requests rx_write_requests"
MESSAGES=300
SIZE=4096
MTU=1024
GROUP=239.77.0.1
OUT=/tmp/port_counters.out

# The values of all counters of a folder, by name.
declare -A seen
look() {
	local name
	# The kernel keeps hw_counters for 10 ms.
	lab_pause
	for name in $COUNTERS; do
		read -r "seen[$name]" <"$PORT/counters/$name"
	done
	for name in $HW_COUNTERS tx_roce_packets rx_roce_packets; do
		read -r "seen[$name]" <"$PORT/hw_counters/$name"
	done
	for name in "${!seen[@]}"; do
		[[ ${seen[$name]} =~ ^[0-9]+$ ]] || { echo "$name is ${seen[$name]}"; exit 1; }
	done
}

# Keeps the values, so that `more NAME` is the increase of a counter.
declare -A old
mark() {
	local name
	look
	for name in "${!seen[@]}"; do
		old[$name]=${seen[$name]}
	done
}

more() {
	echo $((seen[$1] - old[$1]))
}

# within LEAST NAME MOST: ends the script unless the increase of the counter is in this range.
within() {
	local grown
	grown=$(more "$2")
	if [ "$grown" -lt "$1" ] || [ "$grown" -gt "$3" ]; then
		echo "$2 has grown by $grown, expected are $1 to $3"
		exit 1
	fi
}

# A program in both guests, which meet when the server READY succeeds: meet SERVER CLIENT READY…
meet() {
	local server=$1 client=$2 pid
	shift 2
	lab barrier port_counters
	mark
	lab barrier port_counters
	if [ "$GUEST_INDEX" = 0 ]; then
		$server >$OUT &
		pid=$!
		lab_until 20 "$@"
		lab barrier port_counters
		wait $pid || { cat $OUT; exit 1; }
	else
		lab barrier port_counters
		$client >$OUT || { cat $OUT; exit 1; }
	fi
	lab barrier port_counters
	look
}

# The kernel reads them by packets of the performance management class.
# proves: process_mad
[ -d "$PORT/counters" ]
# Each guest sends as many messages as it receives, and an acknowledgement for each; time-outs repeat some.
pingpong="ibv_rc_pingpong -d $RDMA_DEV -g $GID_INDEX -m $MTU -s $SIZE -n $MESSAGES"
meet "$pingpong" "$pingpong $PEER_IP" lab_listens 18515
packets=$((MESSAGES * SIZE / MTU))
words=$((MESSAGES * SIZE / 4))
for way in xmit rcv; do
	within $packets port_${way}_packets $((2 * packets))
	# Headers are some 60 octets of each packet.
	within $((words + packets * 58 / 4)) port_${way}_data $((2 * words))
	within "$(more port_${way}_packets)" unicast_${way}_packets "$(more port_${way}_packets)"
	within 0 multicast_${way}_packets 0
done
# The counters of the device say the same.
within "$(more tx_roce_packets)" port_xmit_packets "$(more tx_roce_packets)"
within "$(more rx_roce_packets)" port_rcv_packets "$(more rx_roce_packets)"
for name in port_rcv_errors port_xmit_discards link_downed req_cqe_error resp_cqe_error; do
	within 0 "$name" 0
done

# The kernel's own frames are the netdev's.
ping="ping -q -c 20 -i 0.01 -s 1400"
meet "$ping $PEER_IP" "$ping $PEER_IP" true
for name in port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets; do
	within 0 "$name" 0
done

listens_to_group() {
	rdma resource show qp | grep -q " comm mckey"
}
receive="mckey -m $GROUP -b $MY_IP -C 10"
meet "$receive" "$receive -s" listens_to_group
if [ "$GUEST_INDEX" = 0 ]; then
	within 10 multicast_rcv_packets 10
	within 0 multicast_xmit_packets 0
else
	within 10 multicast_xmit_packets 10
	within 0 multicast_rcv_packets 0
fi

# READs and WRITEs of the client are requests at the server.
for operation in write read; do
	command="ib_${operation}_lat -d $RDMA_DEV -x $GID_INDEX -n 100 -s 64 -p 18690"
	meet "$command" "$command $PEER_IP" lab_listens 18690
	case $operation$GUEST_INDEX in
	write*) within 100 rx_write_requests 200 ;;
	read0) within 100 rx_read_requests 200 ;;
	read1) within 0 rx_read_requests 0 ;;
	esac
done
echo "all right"
