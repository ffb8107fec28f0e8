#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Checksums and the segmentation of long packets are left to the device, and its word on received checksums is believed:
# what the kernel tells of each TCP packet (watch_packets), and what the device has segmented, with both and without.
#
#	netdev_offloads server	takes two streams
#	netdev_offloads client	sends one with offloads and one without
. /lab/lib.sh
set -eu

WATCHED=/tmp/watched
STREAMED=/tmp/streamed

server() {
	lab stream-receive 5001
	lab stream-receive 5001
}

segmented_so_far() { ethtool -S "$NETDEV" | sed -n 's/^ *tx_segmented: //p'; }

# How many of these features (a pattern) have this state.
features() { ethtool -k "$NETDEV" | grep -E "^\s*($1): " | tee /dev/stderr | grep -c ": $2\$" || true; }

# Sends a stream and counts its packets.
stream() {
	local before watch
	rm -f $STREAMED
	watch_packets "$NETDEV" $STREAMED checksums >$WATCHED &
	watch=$!
	lab_until 60 grep watching $WATCHED
	before=$(segmented_so_far)
	lab stream-send "$PEER_IP:5001" 8388608
	touch $STREAMED
	wait $watch
	sed -i 1d $WATCHED
	sent=0 received=0 missed=-1
	# shellcheck source=/dev/null
	. $WATCHED
	segmented=$(($(segmented_so_far) - before))
	echo "$(xargs <$WATCHED), $segmented segmented"
	[ "$missed" = 0 ]
	[ "$sent" -ge 100 ]
	[ "$received" -ge 10 ]
}

client() {
	local sent received missed long partial valid segmented
	[ "$(features 'tx-checksumming|tx-checksum-ip-generic|rx-checksumming|scatter-gather|tx-scatter-gather' on)" = 5 ]
	[ "$(features 'tcp-segmentation-offload|tx-tcp-segmentation|tx-tcp6-segmentation' on)" = 3 ]
	# GRO looks at checksums itself, and then says the same as the device.
	ethtool -K "$NETDEV" gro off
	stream
	[ "$long" -ge 20 ]
	[ "$segmented" -ge "$long" ]
	[ "$partial" -ge $((sent - 5)) ]
	[ "$valid" = "$received" ]
	ethtool -K "$NETDEV" rx off tx off
	[ "$(features 'tx-checksumming|rx-checksumming|tcp-segmentation-offload' off)" = 3 ]
	stream
	[ "$segmented" = 0 ]
	[ "$long" = 0 ]
	[ "$partial" = 0 ]
	[ "$valid" = 0 ]
	ethtool -K "$NETDEV" rx on tx on tso on gro on
	[ "$(features 'tx-checksumming|rx-checksumming|tcp-segmentation-offload' on)" = 3 ]
	echo "all right"
}

"$@"
