#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Looks for errors and warnings of checkpatch in the kernel code of the source tree that is the current folder: check_kernel_style.
# Comparisons of kernel versions are allowed, which a driver outside the tree needs. Runs in the guests' root on the host.
set -- guest-driver/kernel/*.[ch] guest-driver/include/*.h tests/guest/kernel/*.[ch]
found=$(perl /usr/share/faultline-lab/checkpatch.pl --strict --no-tree \
	--ignore LINUX_VERSION_CODE,CONSTANT_COMPARISON --file "$@")
echo "$found"
# Each file has been looked at.
if [ "$(echo "$found" | grep -Ec ' has (no obvious )?style problems')" != $# ]; then
	exit 1
fi
! echo "$found" | grep -E '^(ERROR|WARNING):'
