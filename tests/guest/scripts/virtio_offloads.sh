#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A virtio network device has been offered TCP segmentation for IPv4 and IPv6, and two queue pairs.
set -u

features=$(ethtool -k "$NETDEV")
for feature in tx-tcp-segmentation tx-tcp6-segmentation; do
	grep -qE "^[[:space:]]*$feature: on$" <<<"$features" || { echo "$features"; exit 1; }
done
channels=$(ethtool -l "$NETDEV")
grep -qE '^Combined:[[:space:]]*2$' <<<"$channels" || { echo "$channels"; exit 1; }
echo "all right"
