#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Adds the backports kernel beside the one of the release in a new guest root, and records which is which:
# add-backports-kernel ROOT
set -eu
root=$1
names=$root/usr/share/faultline-lab
mkdir -p "$names"
ls "$root/usr/lib/modules" >"$names/stable"
chroot "$root" apt-get install -y --no-install-recommends -t trixie-backports linux-image-amd64 linux-headers-amd64
for modules in "$root"/usr/lib/modules/*; do
	release=${modules##*/}
	grep -qx "$release" "$names/stable" || echo "$release"
done >"$names/backports"
chroot "$root" apt-get clean
