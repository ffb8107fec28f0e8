#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# bpftrace and perf see the driver's tracepoints: as many page faults as the device counts, while a test of them runs.
#
#	apps_trace_tools
. /lab/lib.sh
set -eu

faults() { cat "/sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters/page_faults"; }

# The number of faults in the last line of a tool is equal to the count of the device meanwhile.
compare() {
	local tool=$1 before seen counted
	shift
	before=$(faults)
	seen=$("$@" | tail -n 1)
	counted=$(($(faults) - before))
	echo "$tool: $seen page faults, the device $counted"
	[ "$counted" -gt 0 ] && [ "$seen" = "$counted" ]
}

# A fault is served by a thread of the kernel, so all processes are traced. Each token is that of a RESUME. Faults themselves are not
# counted: they are traced in an interrupt, which may interrupt a program of bpftrace on its processor, and the kernel skips their own then.
with_bpftrace() {
	bpftrace -c "$(command -v odp_faults) ahead" -e '
		tracepoint:faultline:faultline_fault { @open[args.token] = 1; }
		tracepoint:faultline:faultline_resume {
			if (@open[args.token]) { delete(@open[args.token]); }
			@answered = count();
			@map_ns = hist(args.map_ns);
		}
		END { printf("\n%d not answered\n", len(@open)); clear(@open); }' >/tmp/bpftrace.log
	cat /tmp/bpftrace.log >&2
	grep -q PASS /tmp/bpftrace.log
	grep -qx '0 not answered' /tmp/bpftrace.log
	grep -q '^@map_ns' /tmp/bpftrace.log
	sed -n 's/^@answered: //p' /tmp/bpftrace.log
}

with_perf() {
	perf trace -a -e 'faultline:*' -o /tmp/perf.log -- odp_faults ahead >&2
	tail -n 5 /tmp/perf.log >&2
	grep -c 'faultline:faultline_resume(' /tmp/perf.log
}

compare bpftrace with_bpftrace
compare perf with_perf
echo "all right"
