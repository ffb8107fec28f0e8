#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Records the lab's names of the kernels in a new guest root: name-kernels ROOT SUITE OWN [BACKPORTS]
# With a fourth argument, adds the kernel of the suite's backports first.
set -eu
root=$1 suite=$2 own=$3 backports=${4-}
names=$root/usr/share/faultline-lab
mkdir -p "$names"
ls "$root/usr/lib/modules" >"$names/$own"
if [ -n "$backports" ]; then
	chroot "$root" apt-get install -y --no-install-recommends -t "$suite-backports" \
		linux-image-amd64 linux-headers-amd64
	for modules in "$root"/usr/lib/modules/*; do
		release=${modules##*/}
		grep -qx "$release" "$names/$own" || echo "$release"
	done >"$names/$backports"
fi
chroot "$root" apt-get clean
