#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs the module's package for one kernel in a root, then another kernel's headers, as their packages do: DKMS builds the
# module for that too: check-kernel-update RELEASE PACKAGE
set -eu
release=$1 package=$2
mkdir /tmp/headers
for build in /usr/lib/modules/*/build; do
	other=$(basename "$(dirname "$build")")
	[ "$other" = "$release" ] || mv "$build" "/tmp/headers/$other"
done
apt-get install -y --no-install-recommends "$package"
dkms status -k "$release" | grep ': installed'
for build in /tmp/headers/*; do
	other=${build##*/}
	if dkms status -k "$other" | grep ': installed'; then
		echo "the module is built for $other without its headers"
		exit 1
	fi
	mv "$build" "/usr/lib/modules/$other/build"
	run-parts --exit-on-error --arg="$other" /etc/kernel/header_postinst.d
	dkms status -k "$other" | grep ': installed'
	test -e "/usr/lib/modules/$other/updates/dkms/faultline.ko.xz"
done
