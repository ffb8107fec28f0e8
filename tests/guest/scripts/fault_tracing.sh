#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# fault_tracing begin: the driver's trace events go to a trace instance of their own.
# fault_tracing end: prints the instance's counts and its events, and removes it.
set -eu

tracing=/sys/kernel/tracing
dir=$tracing/instances/faults
mountpoint -q $tracing || mount -t tracefs none $tracing
case $1 in
begin)
	mkdir $dir
	echo 16384 >$dir/buffer_size_kb
	echo 1 >$dir/events/faultline/enable
	;;
end)
	echo 0 >$dir/events/faultline/enable
	cat $dir/per_cpu/cpu*/stats
	cat $dir/trace
	rmdir $dir
	;;
esac
