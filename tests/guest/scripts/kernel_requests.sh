#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Requests of a consumer in the kernel (tests/guest/kernel/kernel_verbs.c): with flags that are not supported, over a
# connection, and about a key on several queue pairs.
. /lab/lib.sh
set -eu

trap 'rmmod kernel_verbs' EXIT
insmod "/lib/modules/$(uname -r)/kernel_verbs.ko" netdev="$NETDEV" gid_index="$GID_INDEX"
echo 1 >/sys/module/kernel_verbs/parameters/refused
echo 1 >/sys/module/kernel_verbs/parameters/connection
echo PASS
