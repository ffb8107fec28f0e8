#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A program gets the fatal event of its device.
#
#	fatal_event watch	starts it; returns when it waits for events
#	fatal_event wait	waits for the event
. /lab/lib.sh
set -eu

EVENTS=/tmp/events

case $1 in
watch)
	ibv_asyncwatch -d "$RDMA_DEV" >$EVENTS 2>&1 &
	lab_until 10 grep -q 'async event FD' $EVENTS
	;;
wait)
	# QEMU stops the guest for 65 s if an access was on its way when the device went away.
	lab_until 100 grep -q 'event_type IBV_EVENT_DEVICE_FATAL' $EVENTS || { cat $EVENTS; exit 1; }
	;;
*) exit 2 ;;
esac
