#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Prints memory that nothing points to any more (Documentation/dev-tools/kmemleak.rst). What is younger than five seconds is
# not reported, and a pointer in a register hides a block: so after a while, and twice.
set -eu

sleep 6
for _ in 1 2; do
	echo scan >/sys/kernel/debug/kmemleak
done
cat /sys/kernel/debug/kmemleak
