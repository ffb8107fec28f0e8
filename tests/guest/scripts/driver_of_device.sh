#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Takes the device from its driver and gives it back.
#
#	driver_of_device unbind		takes it
#	driver_of_device bind		gives it back
#	driver_of_device reset		resets it in between
#	driver_of_device remove		removes the function from the PCI bus
#	driver_of_device rescan		looks for functions there, which gives it to the driver
#	driver_of_device unplug		takes it and gives it back while watch_cache waits for events of its mappings
. /lab/lib.sh
set -eu

SLOT=/tmp/slot
cd /sys/bus/pci/drivers/faultline

# Remembers where the device is; without a driver it is not listed here.
remember() {
	local slots=(0000:*)
	[ -e "${slots[0]}" ]
	echo "${slots[0]}" >$SLOT
}

case $1 in
unbind)
	remember
	cat $SLOT >unbind
	;;
bind)
	cat $SLOT >bind
	;;
remove)
	remember
	echo 1 >"/sys/bus/pci/devices/$(cat $SLOT)/remove"
	;;
rescan)
	echo 1 >/sys/bus/pci/rescan
	[ -e "$(cat $SLOT)" ]
	;;
reset)
	remember
	device=/sys/bus/pci/devices/$(cat $SLOT)
	cat "$device/reset_method"
	cat $SLOT >unbind
	echo 1 >"$device/reset"
	cat $SLOT >bind
	;;
unplug)
	remember
	watch_cache unplug faultline "$(cat $SLOT)" | tee /tmp/watch
	# It is given back in any case: the next test wants it.
	result=0
	grep -qx PASS /tmp/watch || result=1
	cat $SLOT >bind
	exit $result
	;;
*) exit 2 ;;
esac
