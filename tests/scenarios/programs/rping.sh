#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Ten rounds of rping, their data checked: rping.sh server|client [WRAPPER]
set -u
role=$1
shift
if [ "$role" = server ]; then
	exec "$@" rping -s -V -a "$MY_IP" -C 10
fi
exec "$@" rping -c -V -a "$PEER_IP" -C 10
