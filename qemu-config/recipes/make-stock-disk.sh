#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs packages in a root, makes the disk /mnt/disk of it, and removes them again:
# make-stock-disk MIB RELEASE LIST-FILES PACK-DISK PACKAGE…
# RELEASE is the kernel for which DKMS builds the module; LIST-FILES and PACK-DISK are the texts of list-files.sh and pack-disk.sh.
set -eu
mib=$1 release=$2 list=$3 pack=$4
shift 4
# The headers of the other kernels are not there.
for build in /usr/lib/modules/*/build; do
	[ "$build" = "/usr/lib/modules/$release/build" ] || rm "$build"
done
sh -c "$list" >/tmp/before
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
apt-get install -y --no-install-recommends "$@"
dkms status
dkms status -k "$release" | grep -q ': installed'
rm /usr/sbin/policy-rc.d

# apt does not leave the provider beside another release of rdma-core.
mkdir -p /tmp/newer/DEBIAN
printf 'Package: libibverbs1\nVersion: 999.0-1\nArchitecture: amd64\nMaintainer: none\nDescription: none\n' \
	>/tmp/newer/DEBIAN/control
dpkg-deb -b /tmp/newer /tmp/newer.deb
apt-get install -s /tmp/newer.deb | grep '^Remv faultline-ibverbs-provider'
rm -r /tmp/newer /tmp/newer.deb

sh -c "$pack" pack-disk "$mib"
for file; do
	dpkg-deb -f "$file" Package
done | xargs apt-get purge -y
sh -c "$list" >/tmp/after
diff /tmp/before /tmp/after
