#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Applies the patches /mnt/linux/*.patch one after the other, and builds the driver after each that has it; after the last one also with
# its option, and as for a kernel without on-demand paging: check-kernel-series RELEASE WARNINGS
# The driver is built as an external module, with the headers of the kernel RELEASE, but the list of drivers of the patches.
set -eu
release=$1 warnings=$2
tree=/tmp/linux
drivers=include/uapi/rdma/ib_user_ioctl_verbs.h
mkdir -p $tree/${drivers%/*}
cp "/usr/src/linux-headers-${release%-*}-common/$drivers" $tree/$drivers
# Builds with these variables of make and options of the compiler.
build() {
	make -s -C "/usr/src/linux-headers-$release" "M=$tree/drivers/infiniband/hw/faultline" W=1 -j"$(nproc)" \
		CONFIG_INFINIBAND_FAULTLINE=m "$1" KCFLAGS="-Werror $warnings -I$tree/include/uapi -include $tree/$drivers $2" modules
}
for patch in /mnt/linux/000[1-9]-*.patch; do
	echo "$patch"
	patch -d $tree -p1 --no-backup-if-mismatch <"$patch"
	test -e $tree/drivers/infiniband/hw/faultline/Makefile || continue
	build OPTION= ''
done
# The last patch again, with its option.
build CONFIG_INFINIBAND_FAULTLINE_EXTENSIONS=y -DCONFIG_INFINIBAND_FAULTLINE_EXTENSIONS=1
nm $tree/drivers/infiniband/hw/faultline/faultline.ko | grep faultline_lease
echo '#undef CONFIG_INFINIBAND_ON_DEMAND_PAGING' >/tmp/pinned.h
build CONFIG_INFINIBAND_ON_DEMAND_PAGING= '-include /tmp/pinned.h'
if nm $tree/drivers/infiniband/hw/faultline/faultline.ko | grep faultline_odp_attach; then exit 1; fi
