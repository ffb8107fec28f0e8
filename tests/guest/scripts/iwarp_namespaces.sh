#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# iwarp_namespaces, in two guests at once: an iWARP adapter has the connections of its network namespace only, also after a reset, and
# can be given to another namespace. At the end all is as it was.
. /lab/lib.sh
set -eu

SERVER=$([ "$GUEST_INDEX" = 0 ] && echo "$MY_IP" || echo "$PEER_IP")
# What runs a command in a namespace.
INSIDE=()

inside() {
	"${INSIDE[@]}" "$@"
}

# Starts a listener for any address at a port, whose process is $LISTENER: listen PORT [COMMAND…]. The command leads into a namespace.
listen() {
	local port=$1
	shift
	"$@" rping -s -P -V -p "$port" >"/run/rping.$port" 2>&1 &
	LISTENER=$!
}

# rping from the second guest to the server's port, which listens when both are here: over PORT
over() {
	lab barrier listening
	if [ "$GUEST_INDEX" = 1 ]; then
		lab_until 20 reached "$1" || { inside rping -c -v -V -a "$SERVER" -C 20 -p "$1"; exit 1; }
		echo "rping over port $1"
	fi
	lab barrier over
}

reached() {
	inside rping -c -v -V -a "$SERVER" -C 20 -p "$1" | grep -q rdma-ping-19:
}

# No listener of the server's adapter has the port: never PORT
never() {
	lab barrier listening
	[ "$GUEST_INDEX" = 0 ] || lab_fails timeout 20 rping -c -v -V -a "$SERVER" -C 1 -p "$1"
	lab barrier over
}

namespace() {
	ip netns add "$1"
	ip -n "$1" link set lo up
}

# The kernel needs a moment to end a namespace.
end_namespace() {
	ip netns del "$1"
	only_one() { [ "$(lsns -t net -n | wc -l)" = 1 ]; }
	lab_until 20 only_one
}

shared() {
	if [ "$GUEST_INDEX" = 0 ]; then
		namespace other
		listen 7200 ip netns exec other
		other=$LISTENER
		lab_until 10 lab_listens_cm rping
	fi
	never 7200
	if [ "$GUEST_INDEX" = 0 ]; then
		recovery remember
		recovery reset
		recovery counted 1
	fi
	never 7200
	if [ "$GUEST_INDEX" = 0 ]; then
		# The port is free here.
		listen 7200
	fi
	over 7200
	if [ "$GUEST_INDEX" = 0 ]; then
		kill "$other" "$LISTENER"
		wait "$other" "$LISTENER" || true
		end_namespace other
	fi
	lab barrier shared
}

exclusive() {
	# Its adapter goes, so it is no listener of the next namespace.
	listen 7300
	outside=$LISTENER
	lab_until 10 lab_listens_cm rping
	rdma system set netns exclusive
	namespace inner
	INSIDE=(ip netns exec inner)
	lab_fails inside rdma link show "$RDMA_DEV/1" 2>/dev/null
	rdma dev set "$RDMA_DEV" netns inner
	ip link set "$NETDEV" netns inner
	inside ip link set "$NETDEV" up
	inside ip address add "$MY_IP/24" dev "$NETDEV"
	[ -z "$(rdma link)" ]
	lab_fails rping -s -a "$MY_IP" -C 1
	[ "$GUEST_INDEX" = 1 ] || listen 7300 "${INSIDE[@]}"
	over 7300
	# In the other direction, to one address.
	if [ "$GUEST_INDEX" = 1 ]; then
		inside rping -s -V -a "$MY_IP" -C 20 &
		server=$!
		lab barrier listening
		wait $server
	else
		SERVER=$PEER_IP
		lab barrier listening
		lab_until 20 reached 7174
		kill $LISTENER
		wait $LISTENER || true
	fi
	kill $outside
	wait $outside || true
	lab barrier inside
	ip -n inner link set "$NETDEV" netns 1
	end_namespace inner
	INSIDE=()
	# The kernel gives the device back when nothing uses the namespace any more.
	lab_until 20 test -e "/sys/class/infiniband/$RDMA_DEV"
	rdma system set netns shared
	bash -c "$(cat /run/lab.configure)"
	. /run/lab.env
}

shared
exclusive
lab barrier restored
[ "$GUEST_INDEX" = 1 ] || listen 7174
over 7174
[ "$GUEST_INDEX" = 1 ] || kill $LISTENER
echo "all right"
