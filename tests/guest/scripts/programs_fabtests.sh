#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Tests of libfabric (fabtests) between two guests, one after the other: programs_fabtests server|client msg|rxm|rxd
. /lab/lib.sh
set -eu

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
esac

for entry in "${TESTS[@]}"; do
	read -ra words <<<"$entry"
	program=${words[1]}
	command=("${words[@]:1}" -p "$PROVIDER" -s "$MY_IP")
	case $1 in
	server)
		ready="lab_listens_cm $program"
		# The service that tells the numbers of datagram queue pairs.
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
