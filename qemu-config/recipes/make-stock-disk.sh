#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs packages in a root, makes the disk /mnt/disk of it, and removes them again:
# make-stock-disk MIB RELEASE LIST-FILES PACKAGE…
# RELEASE is the kernel for which DKMS builds the module; LIST-FILES is the text of list-files.sh.
set -eu
mib=$1 release=$2 list=$3
shift 3
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

# Without what is mounted in it.
mkdir /tmp/root
mount --bind / /tmp/root
mke2fs -q -F -t ext4 -b 4096 -O '^has_journal,^metadata_csum' -m 0 -E lazy_itable_init=1,nodiscard -L faultline \
	-d /tmp/root /mnt/disk "${mib}M"
umount /tmp/root
rmdir /tmp/root
for file; do
	dpkg-deb -f "$file" Package
done | xargs apt-get purge -y
sh -c "$list" >/tmp/after
diff /tmp/before /tmp/after
