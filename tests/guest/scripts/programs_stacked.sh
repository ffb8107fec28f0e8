#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# RDMA over a network interface above the NIC's in both guests, or in network namespaces:
#
#	programs_stacked server|client bridge|macvlan|ipvlan|vlan|bond|shared_namespace|own_namespace
. /lab/lib.sh
set -eu

SELF=$(realpath "$0")
# The addresses of the interface, and its name.
OWN=10.78.0.$((GUEST_INDEX + 1))
PEER=10.78.0.$((2 - GUEST_INDEX))
INTERFACE=stacked
# What runs a command where the interface is, and where the counters of its device are.
INSIDE=() DEVICE=()

inside() {
	"${INSIDE[@]}" "$@"
}

stack() {
	ip link add link "$NETDEV" name stacked type "$@"
}

new_namespace() {
	ip netns add inner
	INSIDE=(ip netns exec inner)
	inside ip link set lo up
}

make() {
	case $1 in
	bridge)
		ip link add name stacked type bridge
		ip link set "$NETDEV" master stacked
		;;
	bond)
		modprobe bonding max_bonds=0
		ip link add name stacked type bond mode active-backup miimon 50
		ip link set "$NETDEV" down
		ip link set "$NETDEV" master stacked
		;;
	# The interface below must not answer for the address, because it has another MAC address.
	macvlan)
		sysctl -qw net.ipv4.conf.all.arp_ignore=1
		stack macvlan mode bridge
		;;
	ipvlan) stack ipvlan mode l2 ;;
	vlan) stack vlan id 78 ;;
	shared_namespace)
		new_namespace
		make macvlan
		ip link set stacked netns inner
		;;
	own_namespace)
		INTERFACE=$NETDEV
		rdma system set netns exclusive
		new_namespace
		DEVICE=("${INSIDE[@]}")
		lab_fails inside rdma link show "$RDMA_DEV/1" 2>/dev/null
		rdma dev set "$RDMA_DEV" netns inner
		ip link set "$NETDEV" netns inner
		;;
	esac
}

unmake() {
	case $1 in
	shared_namespace)
		# It takes the interface along.
		ip netns del inner
		;;
	own_namespace)
		ip -n inner link set "$NETDEV" netns 1
		ip netns del inner
		# The kernel gives the device back when nothing uses the namespace any more.
		lab_until 20 test -e "/sys/class/infiniband/$RDMA_DEV"
		rdma system set netns shared
		configure_again
		;;
	bond)
		# The kernel adds the GIDs of the interface below again, in any order.
		ip link del stacked
		ip address flush dev "$NETDEV" scope global
		lab_until 20 lab_has_no_gid "$MY_IP"
		lab_until 20 lab_has_no_gid "$MY_IP6"
		configure_again
		;;
	*) ip link del stacked ;;
	esac
	sysctl -qw net.ipv4.conf.all.arp_ignore=0
	lab_until 20 lab_has_no_gid "$OWN"
	lab_until 20 lab_has_gid "$MY_IP"
	[ "$(lab_gid_index "$MY_IP")" = "$GID_INDEX" ]
}

configure_again() {
	bash -c "$(cat /run/lab.configure)"
	. /run/lab.env
}

lab_listens_inside() {
	inside bash -c ". /lab/lib.sh; lab_listens $1"
}

# Connections between two addresses, by the connection manager and by GIDs of an interface:
# exchange ROLE OWN PEER INTERFACE [PREFIX…]. The prefix leads commands into a namespace.
exchange() {
	local role=$1 own=$2 peer=$3 index pingpong
	lab_until 20 lab_has_gid "$own"
	index=$(lab_gid_index "$own")
	[ "$(cat "/sys/class/infiniband/$RDMA_DEV/ports/1/gid_attrs/ndevs/$index")" = "$4" ]
	shift 4
	INSIDE=("$@")
	pingpong=(ibv_rc_pingpong -c -d "$RDMA_DEV" -g "$index" -n 100)
	case $role in
	server)
		lab_serve "lab_listens_cm rping" inside rping -s -V -C 20 -a "$own"
		lab_served
		lab_serve "lab_listens_inside 18515" inside "${pingpong[@]}"
		lab_served
		;;
	client)
		# A request and a response of each READ and WRITE, and 400 KiB in packets of up to 4 KiB.
		lab_call 40 inside rping -c -V -C 20 -a "$peer"
		lab_call 100 inside "${pingpong[@]}" "$peer"
		;;
	esac
}

test_interface() {
	local kind=$2
	make "$kind"
	inside ip link set "$INTERFACE" up
	inside ip address add "$OWN/24" dev "$INTERFACE"
	if [ ${#DEVICE[@]} = 0 ]; then
		exchange "$1" "$OWN" "$PEER" "$INTERFACE" "${INSIDE[@]}"
	else
		"${DEVICE[@]}" "$SELF" exchange "$1" "$OWN" "$PEER" "$INTERFACE"
	fi
	case $kind in
	shared_namespace)
		# The address is not one of the host's namespace.
		lab_fails rping -s -a "$OWN" -C 1
		;;
	own_namespace)
		[ -z "$(rdma link)" ]
		lab_fails rping -s -a "$OWN" -C 1
		;;
	esac
	unmake "$kind"
	INSIDE=()
	exchange "$1" "$MY_IP" "$PEER_IP" "$NETDEV"
	echo "all right"
}

case $1 in
exchange) "$@" ;;
*) test_interface "$@" ;;
esac
