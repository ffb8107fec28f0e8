#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs an archive in folders of a root, and compares what it installs with the packages: check-tarball ARCHIVE RELEASE. RELEASE is a
# kernel. /mnt has the unpacked packages and rdma-core's source.
set -eu
archive=$1 release=$2
cd /tmp
tar xzf "$archive"
cd faultline-*
make | grep install-provider

# The same files as in the packages, but for those of Debian.
make install-host PREFIX=/usr DESTDIR=/tmp/host >/dev/null
cmp /tmp/host/etc/systemd/system/faultline.service /mnt/faultline/usr/lib/systemd/system/faultline.service
cmp /tmp/host/etc/systemd/system/faultline@.service /mnt/faultline/usr/lib/systemd/system/faultline@.service
cmp /tmp/host/etc/sysusers.d/faultline.conf /mnt/faultline/usr/lib/sysusers.d/faultline.conf
cmp /tmp/host/usr/share/zsh/site-functions/_faultline /mnt/faultline/usr/share/zsh/vendor-completions/_faultline
# The packages' program is stripped.
test "$(/tmp/host/usr/bin/faultline --version)" = "$(/mnt/faultline/usr/bin/faultline --version)"
for file in etc/apparmor.d/faultline etc/faultline/faultline.toml \
	usr/share/bash-completion/completions/faultline usr/share/fish/vendor_completions.d/faultline.fish; do
	cmp /tmp/host/$file /mnt/faultline/$file
done
for page in /mnt/faultline/usr/share/man/man*/*.gz; do
	file=${page#/mnt/faultline/}
	gunzip -c "$page" | cmp - "/tmp/host/${file%.gz}"
done
/tmp/host/usr/bin/faultline serve --check --config /tmp/host/etc/faultline/faultline.toml
# A changed configuration stays.
echo '# mine' >>/tmp/host/etc/faultline/faultline.toml
make install-host PREFIX=/usr DESTDIR=/tmp/host >/dev/null
tail -n 1 /tmp/host/etc/faultline/faultline.toml | grep mine
# Elsewhere, the units name the program where it is.
make install-host DESTDIR=/tmp/local >/dev/null
grep '^ExecStart=/usr/local/bin/faultline ' /tmp/local/etc/systemd/system/faultline.service

make install-module KERNEL="$release" PREFIX=/usr DESTDIR=/tmp/guest >/dev/null
modinfo -F vermagic "/tmp/guest/lib/modules/$release/updates/faultline.ko" | grep "^$release "
make provider RDMA_CORE=/tmp 2>&1 | grep 'source of rdma-core'
make install-provider RDMA_CORE=/mnt/rdma-core PREFIX=/usr DESTDIR=/tmp/guest >/tmp/provider.log 2>&1 || {
	tail -n 40 /tmp/provider.log
	exit 1
}
libraries=usr/lib/x86_64-linux-gnu
for file in libfaultline.so libfaultline.so.1 "libibverbs/$(basename /mnt/faultline-ibverbs-provider/$libraries/libibverbs/*)"; do
	test -e "/tmp/guest/$libraries/$file" || {
		echo "$file is missing"
		exit 1
	}
done
cmp /tmp/guest/$libraries/pkgconfig/libfaultline.pc /mnt/libfaultline-dev/$libraries/pkgconfig/libfaultline.pc
cmp /tmp/guest/usr/include/infiniband/faultlinedv.h /mnt/libfaultline-dev/usr/include/infiniband/faultlinedv.h
cmp /tmp/guest/etc/libibverbs.d/faultline.driver /mnt/faultline-ibverbs-provider/etc/libibverbs.d/faultline.driver
gunzip -c /mnt/libfaultline-dev/usr/share/man/man7/faultlinedv.7.gz | cmp - /tmp/guest/usr/share/man/man7/faultlinedv.7
symbols() {
	objdump -T "$1" | awk '/Base|FAULTLINE/ { print $NF }' | sort
}
symbols /tmp/guest/$libraries/libfaultline.so.1 >/tmp/symbols
symbols /mnt/libfaultline1/$libraries/libfaultline.so.1 | cmp - /tmp/symbols
test -s /tmp/symbols

for tree in host guest; do
	make uninstall KERNEL="$release" PREFIX=/usr DESTDIR=/tmp/$tree >/dev/null
done
left=$(find /tmp/host /tmp/guest ! -type d ! -path /tmp/host/etc/faultline/faultline.toml)
test -z "$left" || {
	echo "left: $left"
	exit 1
}
