#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# valkey's server in one guest and its test client for RDMA in the other: programs_valkey server|client
#
# Four threads of the client store values, let the server save them in a process that it forks, and compare the
# values that they get back.
. /lab/lib.sh
set -eu

FOLDER=/run/valkey

server() {
	mkdir -p $FOLDER
	lab_serve "lab_listens_cm valkey-server" valkey-server --port 0 --rdma-bind "$MY_IP" --rdma-port 6379 \
		--protected-mode no --save '' --dir $FOLDER
	lab barrier programs_valkey
	lab_until 20 grep "Background saving terminated with success" /run/lab.server
	kill "$LAB_SERVER"
	lab_served
	rm -r $FOLDER
}

# client PROGRAM KEYS PACKETS: the number of keys of each thread, and the least number of packets of the client.
client() {
	# The number of keys is random, from the first one to below the second one.
	lab_call "$3" "$1" --thread 4 --host "$PEER_IP" --minkeys "$2" --maxkeys $(($2 + 1))
	lab barrier programs_valkey
}

case $1 in
server)
	server
	server
	;;
client)
	# Two requests for each key, of which one has the value in packets of up to 4 KiB.
	client valkey-test 500 4000
	client valkey-test-100k 16 1664
	;;
esac
echo "all right"
