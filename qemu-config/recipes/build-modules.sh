#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the kernel modules below /mnt/kernel and /mnt/test in a guest root: build-modules RELEASE CHECK WARNINGS
# CHECK is 1 to run sparse, WARNINGS are options of the compiler.
set -eu
release=$1 check=$2 warnings=$3
for part in kernel test; do
	# `modules` alone: combined with `clean` in one call, make may run them in either order.
	make -C "/usr/src/linux-headers-$release" "M=/mnt/$part" W=1 "C=$check" -j"$(nproc)" \
		KCFLAGS="$warnings" modules
	# As in a distribution's packages: all debug information would be copied at each boot.
	strip --strip-debug "/mnt/$part"/*.ko
done
