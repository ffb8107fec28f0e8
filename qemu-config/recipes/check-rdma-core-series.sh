#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Applies the patches /mnt/rdma-core/*.patch to the source /mnt/source, builds the provider and runs its test after each that has it, and
# compares what rdma-core installs then with what its packages of Debian contain.
set -eu
cd /mnt/source
for patch in /mnt/rdma-core/000[1-9]-*.patch; do
	echo "$patch"
	patch -p1 --no-backup-if-mismatch <"$patch"
	cmake -G Ninja -B /mnt/build -S . -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_INSTALL_PREFIX=/usr -DNO_PYVERBS=1 -DENABLE_STATIC=1 \
		-DFAULTLINE_WERROR=ON >/tmp/configure.log || {
		tail -n 30 /tmp/configure.log
		exit 1
	}
	test -e providers/faultline || continue
	ninja -C /mnt/build faultline faultline_provider_test
	/mnt/build/bin/faultline_provider_test
done
ninja -C /mnt/build >/tmp/everything.log || {
	tail -n 30 /tmp/everything.log
	exit 1
}
# Some manual pages of others are not in the tarball as they are with these folders; their text does not matter here.
grep -rho --include=cmake_install.cmake '/mnt/source/buildlib/pandoc-prebuilt/[0-9a-f]*' /mnt/build | sort -u | while read -r page; do
	test -e "$page" || touch "$page"
done
DESTDIR=/mnt/installed ninja -C /mnt/build install >/tmp/install.log || {
	tail -n 30 /tmp/install.log
	exit 1
}
cd /mnt/installed
grep -h faultline /mnt/source/debian/ibverbs-providers.install /mnt/source/debian/libibverbs-dev.install >/tmp/listed
test "$(wc -l </tmp/listed)" = 6
while read -r pattern; do
	# shellcheck disable=SC2086
	ls -- $pattern
done </tmp/listed
ls usr/lib/*/libibverbs/libfaultline-rdmav*.so
# The symbols are those that are listed for the package.
sed -n '/^libfaultline.so.1 /,$s/^ \([^@ ]*\)@.*/\1/p' /mnt/source/debian/ibverbs-providers.symbols | sort >/tmp/symbols
objdump -T usr/lib/*/libfaultline.so.1 | awk '/ FAULTLINE_/ { print $NF }' | sort | cmp - /tmp/symbols
