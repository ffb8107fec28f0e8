#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the module index of a kernel with an additional module, below /mnt/tree: index-modules RELEASE MODULE
set -eu
release=$1 module=$2
modules=/usr/lib/modules/$release
mkdir -p "/mnt/tree$modules/updates"
for entry in "$modules"/*; do
	name=${entry##*/}
	case $name in build | source) continue ;; esac
	if [ -d "$entry" ]; then
		mkdir -p "/mnt/tree$modules/$name"
		mount --bind "$entry" "/mnt/tree$modules/$name"
	else
		cp "$entry" "/mnt/tree$modules/"
	fi
done
cp "$module" "/mnt/tree$modules/updates/"
ln -sfn usr/lib /mnt/tree/lib
depmod -b /mnt/tree "$release"
