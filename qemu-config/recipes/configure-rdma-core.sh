#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Configures rdma-core in /mnt/build, from /mnt/source, unless it is configured already.
set -eu
mkdir -p /mnt/build
cd /mnt/build
# -O2 with debug information, as Debian builds it, and all symbols bound when a program loads the library.
[ -f build.ninja ] || cmake -G Ninja -DNO_PYVERBS=1 -DNO_MAN_PAGES=1 -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-z,now /mnt/source
grep -q FAULTLINE_WERROR CMakeCache.txt || cmake -DFAULTLINE_WERROR=ON .
