#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the driver a series of patches for the kernel: kernel-series WORK GUEST-DRIVER COMPAT-CONFIG HEADERS OUT
# WORK is an empty folder, which becomes a repository. COMPAT-CONFIG is what compat_probe.sh says of a kernel: the code for others is left
# out. HEADERS are those of that kernel. Of its existing files the patches change the list of drivers of the UAPI; the person who posts
# them adds the lines that the cover letter names.
set -eu
driver=$2 compat=$3 headers=$4 out=$5
cd "$1"
folder=drivers/infiniband/hw/faultline

# Changes a file as sed does with these arguments, and removes empty lines at its ends and behind others: tidy FILE ARGUMENT…
tidy() {
	changed=$1
	shift
	sed "$@" "$changed" | cat -s | sed -e '1{/^$/d}' -e '${/^$/d}' >.changed
	cat .changed >"$changed"
	rm .changed
}
# Copies the driver's files, without the code for other kernels, and without what depends on a configuration that is undefined
# by the further arguments of unifdef: sources FILE… -- [-UCONFIG…]
sources() {
	files=
	while [ "$1" != -- ]; do
		files="$files $1"
		shift
	done
	shift
	for file in $files; do
		status=0
		# shellcheck disable=SC2086
		unifdef $known "$@" "$driver/kernel/$file" >"$folder/$file" || status=$?
		# 1 if the file is not the same.
		[ $status -le 1 ] || exit $status
		tidy "$folder/$file" -e 's|#include "faultline_uapi.h"|#include <rdma/faultline-abi.h>|' \
			-e '/#include "compat_config.h"/d' -e s/RDMA_DRIVER_UNKNOWN/RDMA_DRIVER_FAULTLINE/
	done
}
# The Makefile, without the list of objects of this name: makefile [NAME…]
makefile() {
	sed -e '/^ifdef KBUILD_EXTMOD/,/^endif/d' -e '/^# compat_config.h tells/,$d' -e '/^ccflags-y/d' -e '/^# make -C/,/^# into/d' \
		-e '2{/^#$/d}' "$driver/kernel/Kbuild" >$folder/Makefile
	for name; do
		if [ "$name" = on-demand ]; then sed -i '/^# Without this option/d' $folder/Makefile; fi
		sed -i -e "/^$name [:+]*=/d" -e "/+= \$($name)/d" $folder/Makefile
	done
	tidy $folder/Makefile -e ''
}

known=
grep -ho 'FAULTLINE_HAVE_[A-Z0-9_]*' "$driver"/kernel/compat_probe.sh "$driver"/kernel/*.[ch] | sort -u >.names
while read -r name; do
	if grep -q "^#define $name 1" "$compat"; then known="$known -D$name=1"; else known="$known -U$name"; fi
done <.names
rm .names
case $known in
*-D*) ;;
*)
	echo "$compat declares nothing"
	exit 1
	;;
esac
of_list() {
	sed -n "s/^$1 [:+]*= //p" "$driver/kernel/Kbuild" | tr ' ' '\n' | sed 's/\.o$/.c/'
}
on_demand=$(of_list on-demand)
extensions=$(of_list extensions)
everything=$(cd "$driver/kernel" && ls -- *.[ch])
[ -n "$on_demand" ] && [ -n "$extensions" ]
base=$(printf '%s\n%s\n' "$on_demand" "$extensions" | sort >.later && printf '%s\n' "$everything" | grep -vxFf .later)
rm .later
# The files of a patch, by its row of the table in UPSTREAM.md: of_patch NUMBER
of_patch() {
	# shellcheck disable=SC2016
	sed -n "s/^| $1 | \([^|]*\)|.*/\1/p" "$driver/UPSTREAM.md" | grep -o '`[^`]*`' | tr -d '`' | while read -r name; do
		printf '%s\n' "$base" | grep -x "faultline_$name\.[ch]" || {
			echo "patch $1: no file of this name: $name" >&2
			exit 1
		}
	done
}

git init --quiet
mkdir -p $folder include/uapi/rdma
drivers=include/uapi/rdma/ib_user_ioctl_verbs.h
cp "$headers/$drivers" $drivers
echo 'The kernel' | commit
add_driver_id $drivers
cp "$driver/include/faultline_uapi.h" include/uapi/rdma/faultline-abi.h
cp "$driver/include/faultline_abi.h" $folder/
commit <<'END'
RDMA/faultline: Add the interfaces of the device and of the provider

The header of the device interface is generated from the emulator's
definitions. The other one has the driver-private parts of uverbs
commands, which depend on the driver's ID.
END

# Parts of the driver with pinned regions. Headers that are of no part are in the first one.
add() {
	files=$(of_patch "$1")
	if [ "$1" = 2 ]; then
		for part in 2 3 4 5 6 7; do of_patch $part; done >.parts
		files=$(of_patch 2 && printf '%s\n' "$base" | grep -vxFf .parts)
		rm .parts
	fi
	[ -n "$files" ]
	# shellcheck disable=SC2086
	sources $files -- -UCONFIG_INFINIBAND_ON_DEMAND_PAGING -UCONFIG_INFINIBAND_FAULTLINE_EXTENSIONS
}
add 2
commit <<'END'
RDMA/faultline: Add the PCI function

Each function is an Ethernet interface and an RDMA device (RoCEv2),
which the program faultline emulates for virtual machines. This part has
reset, command queue, event queues and vectors, and the headers.
END
add 3
commit <<'END'
RDMA/faultline: Add the Ethernet interface

Up to eight queues with RSS, which are raw packet queue pairs of the
device; checksums and segmentation, ethtool.
END
add 4
commit <<'END'
RDMA/faultline: Add verbs with pinned regions

Queue pairs of the services RC, UC, UD and GSI, completion queues,
address handles, memory regions and windows, fast registration.
END
add 5
commit <<'END'
RDMA/faultline: Add shared receive queues and raw packets

Shared receive queues and XRC, device memory, dma-bufs, raw packet queue
pairs with RSS and steering.
END
add 6
commit <<'END'
RDMA/faultline: Add counters, resource tracking and tracepoints

Counters of the port and of queue pairs, what rdma(8) shows of objects,
and tracepoints of page faults, which a later patch uses.
END
add 7
cp "$driver/kernel/Kconfig" $folder/
# shellcheck disable=SC2016
tidy $folder/Kconfig '/^config INFINIBAND_FAULTLINE_EXTENSIONS/,$d'
makefile on-demand extensions
commit <<'END'
RDMA/faultline: Add recovery from errors, and build the driver

After an error of the device, a reset or suspend the driver makes a new
RDMA device and keeps the Ethernet interface. devlink health reports
errors. With this part the driver is complete for pinned regions.
END

# shellcheck disable=SC2086
sources $base $on_demand -- -UCONFIG_INFINIBAND_FAULTLINE_EXTENSIONS
makefile extensions
commit <<'END'
RDMA/faultline: Add on-demand paging

The device has page tables of its own, and reports a page fault by an
event. The driver maps the page with HMM and resumes the device's work;
an MMU notifier removes the device's entries and waits until no access
uses them.
END

cp "$driver/kernel/Kconfig" $folder/
# shellcheck disable=SC2086
sources $everything --
makefile
commit <<'END'
RDMA/faultline: Add watched regions, leases and fault policies

Methods of this device beyond verbs, behind an option of their own.
END

run_git format-patch --quiet --cover-letter -o "$out" -9
sed -i 's/\*\*\* SUBJECT HERE \*\*\*/RDMA: Driver of the Faultline adapter/' "$out/0000-cover-letter.patch"
# shellcheck disable=SC2016
sed -i '/\*\*\* BLURB HERE \*\*\*/c\
With the seventh patch, these lines are needed:\
\
drivers/infiniband/Kconfig:	source "drivers/infiniband/hw/faultline/Kconfig"\
drivers/infiniband/hw/Makefile:	obj-$(CONFIG_INFINIBAND_FAULTLINE) += faultline/\
\
MAINTAINERS:\
FAULTLINE RDMA DRIVER\
M:	(the person who posts the series)\
L:	linux-rdma@vger.kernel.org\
S:	Maintained\
F:	drivers/infiniband/hw/faultline/\
F:	include/uapi/rdma/faultline-abi.h' "$out/0000-cover-letter.patch"
