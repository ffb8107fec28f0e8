#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the provider a series of patches for rdma-core: rdma-core-series SOURCE GUEST-DRIVER PACKAGES OUT
# SOURCE is the unpacked source of a release, which becomes a repository; PACKAGES the folder with what is packed for Debian.
set -eu
driver=$2 packages=$3 out=$4
cd "$1"

# Inserts text after, or before, the first line of a file that is LINE: insert after|before FILE LINE TEXT
insert() {
	grep -qxF -- "$3" "$2" || {
		echo "$2 has no line \"$3\""
		exit 1
	}
	PLACE=$1 LINE=$3 TEXT=$4 awk '
		$0 != ENVIRON["LINE"] || done { print; next }
		ENVIRON["PLACE"] == "after" { print }
		{ print ENVIRON["TEXT"]; done = 1 }
		ENVIRON["PLACE"] == "before" { print }
	' "$2" >.changed
	cat .changed >"$2"
	rm .changed
}
after() {
	insert after "$@"
}

git init --quiet
echo 'rdma-core' | commit

cp "$driver/include/faultline_uapi.h" kernel-headers/rdma/faultline-abi.h
add_driver_id kernel-headers/rdma/ib_user_ioctl_verbs.h
after kernel-headers/CMakeLists.txt '  rdma/erdma-abi.h' '  rdma/faultline-abi.h'
commit <<'END'
kernel-headers: Add the ABI of the faultline driver

Faultline is a RoCEv2 adapter that is emulated for virtual machines. It
supports on-demand paging: the device raises page faults, and its driver
answers them.
END

provider=providers/faultline
mkdir -p $provider/man
cp -r "$driver/provider/." $provider/
rm $provider/COPYING
cp "$driver/include/faultline_abi.h" $provider/
sed -i 's|#include "faultline_uapi.h"|#include <rdma/faultline-abi.h>|' $provider/faultline.h
sed -i s/RDMA_DRIVER_UNKNOWN/RDMA_DRIVER_FAULTLINE/ $provider/faultline.c
cp "$packages/guest/faultlinedv.7" $provider/man/
printf 'rdma_man_pages(\n  faultlinedv.7\n)\n' >$provider/man/CMakeLists.txt
after CMakeLists.txt 'add_subdirectory(providers/erdma)' 'add_subdirectory(providers/faultline)
add_subdirectory(providers/faultline/man)'
after README.md ' - erdma.ko' ' - faultline.ko'
provider_ops='extern const struct verbs_device_ops verbs_provider'
after libibverbs/verbs.h "${provider_ops}_erdma;" "${provider_ops}_faultline;"
after kernel-boot/rdma-description.rules 'DRIVERS=="bnxt_en", ENV{ID_RDMA_ROCE}="1"' 'DRIVERS=="faultline", ENV{ID_RDMA_ROCE}="1"'
after MAINTAINERS 'F:	providers/erdma/' '
FAULTLINE USERSPACE PROVIDER (for faultline.ko)
M:	(the person who posts the series)
S:	Maintained
F:	providers/faultline/'
commit <<'END'
faultline: Add the provider

Queue pairs of the services RC, UC, UD and XRC, shared receive queues,
on-demand regions, memory windows, atomic write and flush, raw packets
with RSS and steering, device memory, tag matching. faultlinedv.h has
what is beyond verbs: fault policies, watches on memory, and leases.

tests/provider_test.c emulates the kernel and the device, and needs no
adapter.
END

after debian/control '  - erdma: Alibaba Elastic RDMA (iWarp) Adapter' '  - faultline: Faultline emulated RoCE adapter'
sed -i 's/^Provides: libefa1, /&libfaultline1, /' debian/control
copyright='Copyright: 2026 The Faultline authors'
after debian/copyright 'License: GPL-2 or BSD-2-clause' "
Files: kernel-headers/rdma/faultline-abi.h
$copyright
License: GPL-2 or BSD-3-clause"
insert before debian/copyright 'Files: providers/hfi1verbs/*' "Files: providers/faultline/*
$copyright
License: BSD-MIT or GPL-2

Files: providers/faultline/faultline_abi.h
$copyright
License: GPL-2 or BSD-3-clause

Files: providers/faultline/man/faultlinedv.7
$copyright
License: Expat
"
{
	printf '\nLicense: Expat\n'
	sed -n '/^Permission/,$p' "$packages/../../LICENSE-MIT" | sed -e 's/^$/./' -e 's/^/ /'
} >>debian/copyright
after debian/ibverbs-providers.install 'usr/lib/*/libefa.so.*' 'usr/lib/*/libfaultline.so.*'
after debian/libibverbs-dev.install 'usr/include/infiniband/efadv.h' 'usr/include/infiniband/faultlinedv.h'
after debian/libibverbs-dev.install 'usr/lib/*/libefa.so' 'usr/lib/*/libfaultline.a
usr/lib/*/libfaultline.so'
after debian/libibverbs-dev.install 'usr/lib/*/pkgconfig/libefa.pc' 'usr/lib/*/pkgconfig/libfaultline.pc'
after debian/libibverbs-dev.install 'usr/share/man/man7/efadv.7' 'usr/share/man/man7/faultlinedv.7'
sed -i 's/libefa, libhns/libefa, libfaultline, libhns/; s/libefa1 libhns1/libefa1 libfaultline1 libhns1/' \
	debian/ibverbs-providers.lintian-overrides
sed -i 's/\/efa\\|hns/\/efa\\|faultline\\|hns/' debian/rules
release=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' CMakeLists.txt)
sed -e 's/^libfaultline.so.1 libfaultline1 /libfaultline.so.1 ibverbs-providers /' \
	-e 's/^\* Build-Depends-Package: .*/* Build-Depends-Package: libibverbs-dev/' \
	-e "s/ 0\.1\.0\$/ ${release%%.*}/" "$packages/debian/libfaultline1.symbols" >>debian/ibverbs-providers.symbols
after redhat/rdma-core.spec 'Obsoletes: liberdma < %{version}-%{release}' 'Provides: libfaultline = %{version}-%{release}'
after redhat/rdma-core.spec '- liberdma: Alibaba Elastic RDMA (iWarp) Adapter' '- libfaultline: Faultline emulated RoCE adapter'
after redhat/rdma-core.spec '%{_mandir}/man7/efadv*' '%{_mandir}/man7/faultlinedv*'
after redhat/rdma-core.spec '%{_libdir}/libefa.so.*' '%{_libdir}/libfaultline.so.*'
# SUSE has a package for each library.
spec=suse/rdma-core.spec
after $spec '%define efa_so_major    1' '%define faultline_so_major 1'
after $spec '%define  efa_lname    libefa%{efa_so_major}' '%define  faultline_lname libfaultline%{faultline_so_major}'
sed -i 's/^Requires:       %{efa_lname} = .*/&\nRequires:       %{faultline_lname} = %{version}-%{release}/' $spec
after $spec '- libefa: Amazon Elastic Fabric Adapter' '- libfaultline: Faultline emulated RoCE adapter'
after $spec 'This package contains the efa runtime library.' '
%package -n %faultline_lname
Summary:        Faultline runtime library
Group:          System/Libraries

%description -n %faultline_lname
This package contains the faultline runtime library.'
after $spec '%postun -n %efa_lname -p /sbin/ldconfig' '
%post -n %faultline_lname -p /sbin/ldconfig
%postun -n %faultline_lname -p /sbin/ldconfig'
after $spec '%{_mandir}/man7/efadv*' '%{_mandir}/man7/faultlinedv*'
after $spec '%{_libdir}/libefa*.so.*' '
%files -n %faultline_lname
%{_libdir}/libfaultline*.so.*'
for file in debian/control debian/ibverbs-providers.lintian-overrides debian/rules; do
	git diff --quiet -- $file && {
		echo "$file is unchanged"
		exit 1
	}
done
commit <<'END'
debian, redhat, suse: Package the faultline provider
END

run_git format-patch --quiet --cover-letter -o "$out" -3
sed -i 's/\*\*\* SUBJECT HERE \*\*\*/Provider for the Faultline adapter/' "$out/0000-cover-letter.patch"
sed -i "/\\*\\*\\* BLURB HERE \\*\\*\\*/c\\
The kernel driver is posted at the same time (see its cover letter)." "$out/0000-cover-letter.patch"
