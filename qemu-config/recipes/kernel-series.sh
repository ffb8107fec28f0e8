#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the driver a series of patches for the kernel: kernel-series WORK GUEST-DRIVER COMPAT-CONFIG OUT
# WORK is an empty folder, which becomes a repository. COMPAT-CONFIG is what compat_probe.sh says of a kernel: the code for others is left
# out. The patches change no existing file of the kernel; the person who posts them adds the lines that the cover letter names.
set -eu
driver=$2 compat=$3 out=$4
cd "$1"
# Another repository, and what its user has configured, must not matter.
# shellcheck disable=SC2046
unset $(git rev-parse --local-env-vars)
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
folder=drivers/infiniband/hw/faultline

run_git() {
	git -c user.name='The Faultline authors' -c user.email=maintainers@faultline.invalid -c commit.gpgsign=false "$@"
}
commit() {
	run_git add --all --force
	run_git commit --quiet --file=-
}

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
			-e '/#include "compat_config.h"/d'
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

git init --quiet
echo 'The kernel' | run_git commit --quiet --allow-empty --file=-
mkdir -p $folder include/uapi/rdma
cp "$driver/include/faultline_uapi.h" include/uapi/rdma/faultline-abi.h
cp "$driver/include/faultline_abi.h" $folder/
commit <<'END'
RDMA/faultline: Add the interfaces of the device and of the provider

The header of the device interface is generated from the emulator's
definitions. The other one has the driver-private parts of uverbs
commands.
END

cp "$driver/kernel/Kconfig" $folder/
# shellcheck disable=SC2016
tidy $folder/Kconfig '/^config INFINIBAND_FAULTLINE_EXTENSIONS/,$d'
# shellcheck disable=SC2086
sources $base -- -UCONFIG_INFINIBAND_ON_DEMAND_PAGING -UCONFIG_INFINIBAND_FAULTLINE_EXTENSIONS
makefile on-demand extensions
commit <<'END'
RDMA/faultline: Add a driver with pinned regions

Each PCI function is an Ethernet interface and an RDMA device (RoCEv2),
which the program faultline emulates for virtual machines. Queue pairs
of the services RC, UC, UD and XRC, shared receive queues, device
memory, raw packets with RSS and steering; recovery from errors of the
device.
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

run_git format-patch --quiet --cover-letter -o "$out" -4
sed -i 's/\*\*\* SUBJECT HERE \*\*\*/RDMA: Driver of the Faultline adapter/' "$out/0000-cover-letter.patch"
# shellcheck disable=SC2016
sed -i '/\*\*\* BLURB HERE \*\*\*/c\
The patches change no existing file. With the second one, these lines are needed:\
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
