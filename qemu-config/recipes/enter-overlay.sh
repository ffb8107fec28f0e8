#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs a script in a guest root whose changes are lost at its end: enter-overlay ENTER ROOT WORK SCRIPT ARGUMENT…
# ENTER is the text of enter-root.sh. Must be run in a mount namespace of its own.
set -eu
enter=$1 root=$2
shift 2
# Below the root, so that no other folder is needed. An overlay does not show what is mounted in its layers.
over=$root/mnt
mount -t tmpfs -o mode=755 overlay "$over"
mkdir "$over/upper" "$over/work" "$over/root"
mount -t overlay -o "lowerdir=$root,upperdir=$over/upper,workdir=$over/work" overlay "$over/root"
exec sh -euc "$enter" sh "$over/root" "$@"
