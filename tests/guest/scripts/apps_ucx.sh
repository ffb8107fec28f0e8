#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Programs over Open MPI and UCX, one rank in each of two guests.
#
#	apps_ucx server [data]			starts the processes of the other guest's mpirun, until that has ended
#	apps_ucx perftest TRANSPORT 4|6		ucx_perftest's tests over rc or ud, by GIDs of IPv4 or IPv6
#	apps_ucx data TRANSPORT 4|6 [OPTION…]	mpi_data: messages, collectives and windows with verified data
#	apps_ucx on_demand server|client	mpi_data over rc with UCX registering on demand: both devices must fault
#
# The variables of UCX select device, transport and GID, and hide no property of the device.
. /lab/lib.sh
set -eu

# See mpi_agent.
PORT=18700
SELF=$(realpath "$0")
FOLDER=${SELF%/*}
PROGRAM=/root/mpi_data
PERFTESTS=(tag_lat tag_bw stream_bw ucp_put_bw ucp_get ucp_am_bw)

# The compiler takes some seconds under TCG: once in each guest, in both at the same time.
build() {
	[ -x $PROGRAM ] || mpicc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -o $PROGRAM "$FOLDER/mpi_data.c"
}

# mpirun wants nodes by the names that they call themselves.
hosts() {
	grep -q "^$PEER_IP " /etc/hosts || echo "$PEER_IP guest$((1 - GUEST_INDEX))" >>/etc/hosts
}

# What comes over a connection is a command, as ssh would get it; the connection ends with it.
server() {
	hosts
	[ "${1-}" != data ] || build
	busybox nc -ll -p $PORT -e "$SELF" session &
	listener=$!
	lab_until 10 lab_listens $PORT
	lab barrier apps_ucx
	lab barrier apps_ucx
	kill $listener
}

session() {
	read -r line
	exec bash -c "$line"
}

# Starts a command in both guests; the first rank is here.
run() {
	local result=0
	hosts
	lab barrier apps_ucx
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
		mpirun --host "guest$GUEST_INDEX:1,guest$((1 - GUEST_INDEX)):1" -np 2 --prtemca plm_ssh_agent "$FOLDER/mpi_agent" \
		"$@" || result=$?
	lab barrier apps_ucx
	return $result
}

# The same over RoCE: at least this number of packets leaves this guest.
traffic() {
	local least=$1 before after
	shift
	lab_sent before
	run "$@"
	lab_sent after
	echo "$((after - before)) RoCE packets"
	[ "$after" -ge $((before + least)) ] || { echo "they are too few: the data went another way"; exit 1; }
}

# One rank: rank TRANSPORT 4|6 COMMAND…
rank() {
	local transport=$1 own=$MY_IP
	[ "$2" = 4 ] || own=$MY_IP6
	shift 2
	export UCX_NET_DEVICES=$RDMA_DEV:1 UCX_IB_GID_INDEX UCX_TLS=$transport,self
	UCX_IB_GID_INDEX=$(lab_gid_index "$own")
	[ -n "$UCX_IB_GID_INDEX" ] || { echo "no GID of $own"; exit 1; }
	"$@"
}

# All tests in one process: starting it takes longer than each of them. It has no data to verify.
measure() {
	local test
	for test in "${PERFTESTS[@]}"; do
		echo "$test-8 -t $test -s 8 -n 400 -w 20"
		echo "$test-100000 -t $test -s 100000 -n 10 -w 2"
	done >/tmp/ucx_tests
	exec ucx_perftest -f -b /tmp/ucx_tests
}

# Other messages of ucx_perftest to its peer go over TCP.
perftest() {
	local test transport=$1 family=$2
	traffic 1000 --mca pml ob1 --mca btl self,tcp "$SELF" rank "$transport" "$family" measure | tee /tmp/measured
	# A line of each.
	for test in "${PERFTESTS[@]}"; do
		[ "$(grep -c "^ *$test-[0-9]* " /tmp/measured)" = 2 ] || { echo "$test has not run"; exit 1; }
	done
	echo "all right"
}

# Page faults of this guest's NIC until now; rxe has no such counter.
page_faults() {
	case $RDMA_DEV in
	rxe*) echo 0 ;;
	*) cat "/sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters/page_faults" ;;
	esac
}

data() {
	local first last
	local transport=$1 family=$2
	shift 2
	build
	first=$(page_faults)
	traffic 500 --mca pml ucx --mca osc ucx "$SELF" rank "$transport" "$family" $PROGRAM "$@"
	last=$(page_faults)
	[ "$last" = "$first" ] || { echo "page faults of pinned memory"; exit 1; }
	echo "all right"
}

# Memory that is mapped for each message and unmapped behind it. A fault brings up to 1 MiB, so there are only a few.
# Without UCX_REG_NONBLOCK_MEM_TYPES UCX pins, and there are none.
on_demand() {
	local first last
	first=$(page_faults)
	case $1 in
	server) server data ;;
	client)
		build
		traffic 500 --mca pml ucx --mca osc ucx "$SELF" rank rc 4 unpinned
		;;
	esac
	last=$(page_faults)
	echo "$((last - first)) page faults"
	[ "$last" -ge $((first + 5)) ]
	echo "all right"
}

unpinned() {
	export UCX_REG_NONBLOCK_MEM_TYPES=host
	exec $PROGRAM --fresh
}

"$@"
