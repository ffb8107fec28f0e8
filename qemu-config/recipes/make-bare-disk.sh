#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the disk /mnt/disk of a root in which no package of the project is installed: make-bare-disk MIB RELEASE PACK-DISK
# RELEASE is the kernel whose headers are in their place. Those of other kernels are below /root/headers. PACK-DISK is the text
# of pack-disk.sh.
set -eu
mib=$1 release=$2 pack=$3
mkdir /root/headers
for build in /usr/lib/modules/*/build; do
	other=$(basename "$(dirname "$build")")
	[ "$other" = "$release" ] || mv "$build" "/root/headers/$other"
done
sh -c "$pack" pack-disk "$mib"
