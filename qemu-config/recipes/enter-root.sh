#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs a script in a guest root: enter-root ROOT WORK SCRIPT ARGUMENT…
# WORK, if it is not empty, is mounted at /mnt. Must be run in a mount namespace of its own.
set -eu
root=$1 work=$2 script=$3
shift 3
mount -t proc proc "$root/proc"
if [ -n "$work" ]; then
	mount --bind "$work" "$root/mnt"
fi
if [ -e /etc/resolv.conf ]; then
	[ -e "$root/etc/resolv.conf" ] || : >"$root/etc/resolv.conf"
	mount --bind "$(readlink -f /etc/resolv.conf)" "$root/etc/resolv.conf"
fi
exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin \
	DEBIAN_FRONTEND=noninteractive INITRD=No sh -euc "$script" sh "$@"
