#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs a command in a root as a container engine does in a privileged container: enter-container ROOT RUSTUP CARGO FOLDER NAME=VALUE… COMMAND…
# RUSTUP and CARGO are the host's RUSTUP_HOME and CARGO_HOME, FOLDER is the working directory, the variables are all that COMMAND gets. Must be
# run in a mount namespace of its own, with which the mounts end.
set -eu
root=$1 rustup=$2 cargo=$3 folder=$4
shift 4
# unshare in the root needs a root that is a mount.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount --bind "$rustup" "$root/usr/local/rustup"
mount --bind "$cargo" "$root/usr/local/cargo"
if [ -e /etc/resolv.conf ]; then
	[ -e "$root/etc/resolv.conf" ] || : >"$root/etc/resolv.conf"
	mount --bind "$(readlink -f /etc/resolv.conf)" "$root/etc/resolv.conf"
fi
exec chroot "$root" /usr/bin/env -i -C "$folder" "$@"
