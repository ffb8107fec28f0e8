#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Looks for errors and warnings of checkpatch in the kernel code of the source tree that is the current folder: check_kernel_style.
# Also looks for tests of the kernel's version, which say nothing about a kernel with backported changes. Runs in the guests'
# root on the host.
set -- guest-driver/kernel/*.[ch] guest-driver/include/*.h tests/guest/kernel/*.[ch]
found=$(perl /usr/share/faultline-lab/checkpatch.pl --strict --no-tree --file "$@")
echo "$found"
# Each file has been looked at.
if [ "$(echo "$found" | grep -Ec ' has (no obvious )?style problems')" != $# ]; then
	exit 1
fi
# checkpatch knows the first of these only.
version='LINUX_VERSION_[A-Z]+|KERNEL_VERSION|UTS_RELEASE|[A-Z]+_RELEASE_(CODE|VERSION)|linux/version\.h|KERNELRELEASE|PATCHLEVEL'
if grep -HnwE "$version" "$@" guest-driver/kernel/Kbuild guest-driver/kernel/*.sh; then
	echo "ERROR: the lines above test the kernel's version: add a probe to guest-driver/kernel/compat_probe.sh instead"
	exit 1
fi
! echo "$found" | grep -E '^(ERROR|WARNING):'
