#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds consumers of RDMA, and an iWARP adapter in software (siw), which Debian's kernels have switched off, from the source of the same
# package, for a kernel of a guest root: build-upstream-modules RELEASE. Fills /mnt/out. What it installs in the root should be lost at
# its end.
set -eu
release=$1
headers=/usr/src/linux-headers-$release
version=$(dpkg-query -W -f '${Version}' "linux-headers-$release")
series=$(echo "$version" | cut -d. -f1,2)
source=/mnt/source
mkdir -p "$source" /mnt/out
cd /mnt
apt-get update
apt-get download "linux-source-$series=$version"
dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xO "./usr/src/linux-source-$series.tar.xz" |
	tar -xJ -C "$source" --strip-components=1 --wildcards '*/drivers/infiniband/ulp/rtrs' '*/drivers/infiniband/sw/siw' \
		'*/drivers/block/rnbd' '*/fs/smb' '*/fs/nls' '*/scripts/asn1_compiler.c' '*/include/linux/asn1*'
rm linux-source-*.deb

# The packages of headers lack this program.
gcc -O1 "-I$source/include" -o "$headers/scripts/asn1_compiler" "$source/scripts/asn1_compiler.c"
# One build, so that the modules know each other's symbols.
echo 'obj-m := drivers/infiniband/ulp/rtrs/ drivers/infiniband/sw/siw/ drivers/block/rnbd/ fs/smb/' >"$source/Kbuild"
set -- CONFIG_INFINIBAND_RTRS=m CONFIG_INFINIBAND_RTRS_CLIENT=m CONFIG_INFINIBAND_RTRS_SERVER=m \
	CONFIG_RDMA_SIW=m CONFIG_BLK_DEV_RNBD_CLIENT=m CONFIG_BLK_DEV_RNBD_SERVER=m \
	CONFIG_SMBFS=m CONFIG_CIFS=m CONFIG_CIFS_SMB_DIRECT=y CONFIG_SMB_SERVER=m CONFIG_SMB_SERVER_SMBDIRECT=y CONFIG_SMBDIRECT=m
# The source does not read the variables of make. Without debug information the build takes half of the time.
flags="-g0 -I$source/drivers/infiniband/ulp/rtrs -DCONFIG_CIFS_SMB_DIRECT=1 -DCONFIG_SMB_SERVER_SMBDIRECT=1"
make -C "$headers" "M=$source" -j"$(nproc)" "$@" CONFIG_DEBUG_INFO_BTF_MODULES= "KCFLAGS=$flags" modules
find "$source" -name '*.ko' -exec strip --strip-debug {} + -exec cp -t /mnt/out {} +
rm -r "$source"
