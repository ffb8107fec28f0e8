#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs a program that does not look at the status of completions; the device counts those of failures:
# without_cqe_errors COMMAND…
. /lab/lib.sh
set -eu

errors() { (cd "/sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters" && cat cqe_error cqe_flush_error | xargs); }

before=$(errors)
"$@"
after=$(errors)
echo "errors and flushes: $before, then $after"
[ "$after" = "$before" ]
