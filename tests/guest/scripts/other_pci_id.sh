#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A NIC with a PCI ID that the driver does not know gets the driver when the ID is added to it, and then serves a ping-pong.
. /lab/lib.sh
set -eu

DRIVER=/sys/bus/pci/drivers/faultline
function=$(lab_function)
read -r vendor <"$function/vendor"
read -r device <"$function/device"
[ "$vendor $device" != "$LAB_PCI_ID" ]

# A module that is loaded again knows no IDs but its own.
modprobe -r faultline
modprobe faultline
lab_fails test -e "$function/driver"
[ -z "$(lab_rdma_device)" ]

echo "$vendor $device" >$DRIVER/new_id
[ "$function/driver" -ef $DRIVER ]
# The netdev is a new one.
. /run/lab.configure
. /lab/lib.sh
ibv_devinfo -v -d "$RDMA_DEV" | grep -Eq "vendor_part_id:[[:space:]]*$((device))$"
ibv_rc_pingpong -c -d "$RDMA_DEV" -g "$GID_INDEX"
