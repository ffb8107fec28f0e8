#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A connection between two guests carries verified data: by the connection manager on iWARP adapters, else by the example program.
#
#	one_connection server	waits for the client
#	one_connection ready	succeeds when the server waits
#	one_connection client
. /lab/lib.sh
set -eu

pong() { ibv_rc_pingpong -c -n 100 -d "$RDMA_DEV" -g "$GID_INDEX" "$@"; }

if ! lab_is_iwarp; then
	case $1 in
	server) pong ;;
	ready) lab_listens 18515 ;;
	client) pong "$PEER_IP" ;;
	esac
	exit
fi
case $1 in
server) rping -s -V -a "$MY_IP" -C 100 ;;
ready) lab_listens_cm rping ;;
# rping succeeds although a connection ends early: its last line tells.
client) rping -c -v -V -a "$PEER_IP" -C 100 | grep rdma-ping-99: ;;
esac
