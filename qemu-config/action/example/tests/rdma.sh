#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs as root in all guests at the same time: the first guest serves, the second sends to it.
set -eu -o pipefail
if [ "$GUEST_INDEX" = 0 ]; then
	hello_rdma server "$MY_IP" >"$ARTEFACTS/server" &
	server=$!
	lab_until 10 grep -q listening "$ARTEFACTS/server"
fi
lab barrier listening
case $GUEST_INDEX in
0)
	wait "$server"
	cat "$ARTEFACTS/server"
	;;
1) hello_rdma client "$PEER_IP" | tee "$ARTEFACTS/client" ;;
esac
