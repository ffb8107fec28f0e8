#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Two READs of absent pages, the second one posted while the first one waits: two_reads.sh server|client MIN_MS MAX_MS
# The client fails unless the second READ takes so many milliseconds.
set -u
[ "$1" = client ] || exec two_reads
exec two_reads "$PEER_IP" "$2" "$3"
