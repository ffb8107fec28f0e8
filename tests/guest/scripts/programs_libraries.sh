#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Tests of Rust libraries, as their authors have written them (qemu-config/src/libraries.rs builds them):
#
#	programs_libraries tests sideway|async-rdma     test programs, on this guest's device
#	programs_libraries documentation async-rdma     examples of the documentation: each is a server and a client, on this guest's device
#	programs_libraries server|client                examples of sideway, between two guests
. /lab/lib.sh
set -eu

FOLDER=/usr/local/lib/rust-libraries
LOG=/run/libraries.log
EXAMPLES=/run/libraries.examples
before=0 after=0

fail() {
	cat $LOG
	echo "$*"
	exit 1
}

is_rxe() {
	[ -e "/sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters/sent_pkts" ]
}

# The NIC has sent at least this number of RoCE packets since `lab_sent before`, so the data has gone over RDMA.
have_sent() {
	lab_sent after
	[ $((after - before)) -ge "$1" ] || fail "$((after - before)) RoCE packets, which are less than $1"
}

# Runs a test program; at least this number of its tests must pass: run_tests PASSED PACKETS PROGRAM [OPTION…]
run_tests() {
	local passed
	lab_sent before
	"$FOLDER/$3" "${@:4}" >$LOG 2>&1 || fail "$3 has failed"
	passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed;.*/\1/p' $LOG)
	[ "${passed:-0}" -ge "$1" ] || fail "$3: ${passed:-0} tests have passed, which are less than $1"
	have_sent "$2"
	echo "$3: $passed tests"
}

# Runs an example, and prints its output if it or one of its threads has failed.
run_example() {
	local log=/run/${1##*/}.log
	if ! "$1" >"$log" 2>&1 || grep -q panicked "$log"; then
		cat "$log"
		echo "$1 has failed"
		return 1
	fi
}

# The least numbers of tests and of packets follow: requests, not responses. Left out are
# - examples that judge by time: a message must take the 100 ms after which a task polls that sleeps since before;
# - the test timeout_check and examples whose server ends when it has received the client's last message: async-rdma responds to it
#   after that, if the server is still there, and the client waits for the response. Other servers wait for a second;
# - but for rxe what receives immediate data: async-rdma wants the flags of such a completion to be IBV_WC_GRH | IBV_WC_WITH_IMM, as
#   they are with rxe. On other devices, its documentation says, a program must call set_imm_flag_in_wc(2);
# - but for rxe the example 3990, which wants ten completions to overrun a CQ of one entry. A device may make it larger.
case $1.${2-} in
tests.sideway)
	run_tests 59 0 sideway/sideway
	run_tests 2 4 sideway/test_atomic
	run_tests 1 0 sideway/test_cq
	run_tests 1 0 sideway/test_mr_and_cq
	run_tests 4 20 sideway/test_post_send
	run_tests 1 0 sideway/test_qp
	;;
tests.async-rdma)
	# It has one more, of memory windows, which its authors have switched off.
	run_tests 31 0 async-rdma/async_rdma
	run_tests 3 6 async-rdma/atomic
	run_tests 1 4 async-rdma/cancel_safety
	run_tests 1 0 async-rdma/device
	run_tests 1 10 async-rdma/loop
	run_tests 8 6 async-rdma/mr_slice
	run_tests 2 4 async-rdma/rmr_access
	run_tests 2 4 async-rdma/rmr_timeout --skip timeout_check
	! is_rxe || run_tests 2 4 async-rdma/imm
	;;
documentation.async-rdma)
	# Names end with the line of the source.
	left_out='352|3846|3923|23|1336|1680|2447|2517|2831|2897|3036|3095' least=33
	is_rxe || left_out+='|1817|1881|2083|2298|2374|2584|3990' least=26
	find $FOLDER/async-rdma/documentation -type f | grep -Ev "_($left_out)_0$" >$EXAMPLES
	[ "$(wc -l <$EXAMPLES)" -ge "$least" ] || {
		echo "$(wc -l <$EXAMPLES) examples are built, which are less than $least"
		exit 1
	}
	lab_sent before
	export -f run_example
	# They wait for each other for seconds.
	# shellcheck disable=SC2016 # for the inner shell
	xargs -P 4 -n 1 bash -c 'run_example "$0"' <$EXAMPLES >$LOG 2>&1 || fail "examples have failed"
	have_sent 40
	echo "$(wc -l <$EXAMPLES) examples, $((after - before)) RoCE packets"
	;;
server.)
	lab_serve "lab_listens 18515" $FOLDER/sideway/rc_pingpong_split -d "$RDMA_DEV" -g "$GID_INDEX"
	lab_served
	lab_serve "lab_listens_cm cmtime" $FOLDER/sideway/cmtime
	lab_served
	;;
client.)
	# Messages, and three packets of the connection manager for each connection.
	lab_call 1000 $FOLDER/sideway/rc_pingpong_split -d "$RDMA_DEV" -g "$GID_INDEX" "$PEER_IP"
	# Without -b: the address that this option has is gone from the stack when the library's optimized code reads it.
	lab_call 300 $FOLDER/sideway/cmtime -s "$PEER_IP"
	;;
esac
echo "all right"
