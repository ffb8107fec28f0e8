#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds a debug kernel with the configuration /mnt/config in a guest root: build-debug-kernel NAME. Fills /mnt/out with a
# tree to lay over the root.
set -eu
name=$1
cd /mnt
mkdir source
tar -C source --strip-components=1 -xf /usr/src/linux-source-*.tar.xz
cd source
make KCONFIG_ALLCONFIG=/mnt/config allnoconfig
make -s -j"$(nproc)" bzImage modules
release=$(make -s kernelrelease)
modules=/mnt/out/usr/lib/modules/$release
headers=/mnt/out/usr/src/linux-headers-$release
share=/mnt/out/usr/share/faultline-lab
mkdir -p /mnt/out/boot "$headers" "$share"
make -s modules_install INSTALL_MOD_PATH=/mnt/out/usr DEPMOD=true
rm -f "$modules/build"
cp arch/x86/boot/bzImage "/mnt/out/boot/vmlinuz-$release"
make run-command KBUILD_RUN_COMMAND="sh scripts/package/install-extmod-build $headers"
cp .config "$headers/"
ln -s usr/lib /mnt/out/lib
depmod -b /mnt/out "$release"
rm /mnt/out/lib
cp scripts/checkpatch.pl scripts/spelling.txt scripts/const_structs.checkpatch "$share/"
echo "$release" >"$share/$name"
