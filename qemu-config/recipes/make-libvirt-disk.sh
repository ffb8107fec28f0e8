#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the disk /mnt/disk of a root in which the package of the host, libvirt and QEMU are installed by the steps of the package's
# README.Debian, without those that need a running system: make-libvirt-disk MIB PACK-DISK
# PACK-DISK is the text of pack-disk.sh. /mnt has the package.
set -eu
mib=$1 pack=$2
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
printf 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n' >/etc/apt/apt.conf.d/90test
apt-get update
cd /mnt
apt install ./faultline_*.deb
sed -n '/^libvirt$/,/^Ports/s/^    //p' /usr/share/doc/faultline/README.Debian | grep -v '^virsh ' >/tmp/steps
grep libvirt-qemu /tmp/steps
sh -eux /tmp/steps
apt-get install qemu-utils
apt-get clean
rm /usr/sbin/policy-rc.d
sh -c "$pack" pack-disk "$mib"
