#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# perftest's READs into and out of memory that is registered on demand: odp_reads.sh server|client OPTION…
set -u
role=$1
shift
options=(--odp -F -d "$RDMA_DEV" -x "$GID_INDEX" "$@")
[ "$role" = server ] || options+=("$PEER_IP")
exec ib_read_bw "${options[@]}"
