#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Tests of libfabric (fabtests) between two guests, one after the other:
#
#	programs_fabtests server|client msg|rxm|rxd|msg_bench|rxm_bench
#
# fi_msg_sockets is left out: libfabric resolves the address of its endpoint twice, which rdma_resolve_addr(3) refuses with EINVAL, on
# rdma_rxe too.
. /lab/lib.sh
set -eu

# Five rounds, after as many to warm up. With more than four messages under way the buffers are larger than a guest's memory.
BENCH="-I 5 -w 5 -W 4"

# For each test the RoCE packets that the client sends at least: requests, and the messages of the connection.
case $2 in
msg)
	PROVIDER=verbs
	TESTS=(
		"4 fi_msg"
		"4 fi_msg_epoll"
		"20 fi_cm_data"
		"4 fi_cq_data -e msg -o senddata"
		"4 fi_cq_data -e msg -o writedata"
	)
	;;
rxm)
	PROVIDER="verbs;ofi_rxm"
	TESTS=(
		"4 fi_rdm"
		"4 fi_cq_data -e rdm -o senddata"
		"4 fi_cq_data -e rdm -o writedata"
	)
	;;
rxd)
	PROVIDER="verbs;ofi_rxd"
	TESTS=("4 fi_rdm")
	;;
# Messages of 64 bytes to 1 MiB. With -v their data is compared. For WRITEs and READs this needs completions that tell of delivery
# (FI_DELIVERY_COMPLETE), which libfabric has over ofi_rxm only.
msg_bench)
	PROVIDER=verbs
	TESTS=(
		"2600 fi_msg_pingpong -v $BENCH"
		"2600 fi_msg_bw -v $BENCH"
		"2600 fi_rma_bw -e msg -o write $BENCH"
		"2600 fi_rma_bw -e msg -o read $BENCH"
		"2600 fi_rma_bw -e msg -o writedata -v $BENCH"
		"2600 fi_rma_pingpong -e msg -o write $BENCH"
		"2600 fi_rma_pingpong -e msg -o writedata -v $BENCH"
	)
	;;
rxm_bench)
	PROVIDER="verbs;ofi_rxm"
	TESTS=(
		"2600 fi_rdm_pingpong -v $BENCH"
		"2600 fi_rdm_tagged_pingpong -v $BENCH"
		"2600 fi_rdm_bw -v $BENCH"
		"2600 fi_rdm_tagged_bw -v $BENCH"
		"2600 fi_rma_bw -e rdm -o write -v $BENCH"
		"2600 fi_rma_bw -e rdm -o read -v $BENCH"
		"2600 fi_rma_bw -e rdm -o writedata -v $BENCH"
		"2600 fi_rma_pingpong -e rdm -o write -v $BENCH"
		"2600 fi_rma_pingpong -e rdm -o writedata -v $BENCH"
		# It has no -W. With -S its buffers are small, too.
		"100 fi_rdm_atomic -o all -v -I 5 -S 64"
	)
	;;
esac

for entry in "${TESTS[@]}"; do
	read -ra words <<<"$entry"
	program=${words[1]}
	command=("${words[@]:1}" -p "$PROVIDER" -s "$MY_IP")
	case $1 in
	server)
		ready="lab_listens_cm $program"
		# The service that publishes the numbers of datagram queue pairs.
		[ "$2" != rxd ] || ready="lab_listens 5678"
		lab_serve "$ready" "${command[@]}"
		lab_served
		;;
	client)
		lab_call "${words[0]}" "${command[@]}" "$PEER_IP"
		;;
	esac
done
echo "all right"
