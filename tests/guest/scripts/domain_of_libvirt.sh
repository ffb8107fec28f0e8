#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The kernel command line of a virtual machine names this for systemd (systemd.run): a machine that libvirt has started has no
# channel to the lab. Its output goes to the console: domain_of_libvirt INDEX. Machine 0 waits for messages of machine 1.
exec >/dev/console 2>&1
trap 'echo "domain_of_libvirt: exit status $?"' EXIT
index=$1
. /lab/lib.sh
set -eu

configure_guest faultline '' "MY_IP=10.77.0.$((index + 1))" "MY_IP6=fd77::$((index + 1))" LAB_TIME_FACTOR=2
. /run/lab.env
modinfo -F filename faultline
ibv_devinfo -d "$RDMA_DEV" | grep PORT_ACTIVE
pingpong=(ibv_rc_pingpong -c -d "$RDMA_DEV" -g "$GID_INDEX")
if [ "$index" = 0 ]; then
	"${pingpong[@]}"
	exit
fi
# The other machine may still be booting. The limit is that of boot-with-libvirt.sh.
until "${pingpong[@]}" 10.77.0.1; do
	sleep 1
done
