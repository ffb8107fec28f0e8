#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Prints path, mode, owner and target of each file of a root, without what any installation of packages changes.
# dh_apparmor's script removes the folder of disabled profiles if it is empty.
set -eu
find / -xdev \( -path /proc -o -path /mnt -o -path /tmp -o -path /dev -o -path /run -o -path /var/log -o -path /var/cache \
	-o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /usr/sbin/policy-rc.d -o -name 'mok.*' -path '/var/lib/dkms/*' \
	-o -path '/etc/*-' -o -path /etc/apparmor.d/disable \) -prune \
	-o -printf '%p %m %u %g %l\n' | LC_ALL=C sort
getent passwd | cut -d: -f1 | sed 's/^/user /'
getent group | cut -d: -f1 | sed 's/^/group /'
