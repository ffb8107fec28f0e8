#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sets the addresses of this guest, and writes to /run/lab.env where the device under test is, with the variables NAME:
# configure_guest faultline|rxe|siw|none MTU NAME=VALUE…
# With an empty MTU the interface keeps the driver's.
. /lab/lib.sh
nic=$1 mtu=$2
shift 2
# For tests after which the device is a new one.
printf '%q ' configure_guest "$nic" "$mtu" "$@" >/run/lab.configure
declare -x "$@"

find_netdev() {
	NETDEV=$(lab_netdev)
	[ -n "$NETDEV" ]
}
find_rdma() {
	RDMA_DEV=$(lab_rdma_device)
	[ -n "$RDMA_DEV" ]
}
# The device exists before udev hears of it, which then renames it.
is_renamed() {
	find_rdma && [[ $RDMA_DEV != faultline* ]]
}
find_gids() {
	# An iWARP adapter has one entry, its MAC address.
	if lab_is_iwarp; then
		GID_INDEX=0 GID_INDEX6=0
		return
	fi
	GID_INDEX=$(lab_gid_index "$MY_IP")
	GID_INDEX6=$(lab_gid_index "$MY_IP6")
	[ -n "$GID_INDEX" ] && [ -n "$GID_INDEX6" ]
}
no_device() {
	echo "$1"
	dmesg | tail -n 30
	exit 1
}

mkdir -p /tmp/artefacts
NETDEV='' RDMA_DEV='' GID_INDEX='' GID_INDEX6=''
if [ "$nic" != none ]; then
	[ "$nic" != faultline ] || lab_add_pci_id || no_device 'the driver does not take the NIC'
	lab_until 60 find_netdev || no_device 'the NIC has no network interface'
	# udev may just be renaming it.
	udevadm settle --timeout=20
	find_netdev
	[ -z "$mtu" ] || ip link set "$NETDEV" mtu "$mtu"
	# No IPv6 duplicate address detection: it would delay the addresses by two seconds. Those that are given stay when the
	# link goes, as IPv4's do.
	sysctl -qw "net.ipv6.conf.$NETDEV.accept_dad=0" "net.ipv6.conf.$NETDEV.keep_addr_on_down=1"
	ip link set "$NETDEV" up || exit
	ip address add "$MY_IP/24" dev "$NETDEV" || exit
	ip address add "$MY_IP6/64" dev "$NETDEV" nodad || exit
	if [ "$nic" = rxe ]; then
		modprobe rdma_rxe && rdma link add rxe0 type rxe netdev "$NETDEV"
	elif [ "$nic" = siw ]; then
		lab_insmod siw && rdma link add siw0 type siw netdev "$NETDEV"
	fi
	lab_until 60 find_rdma || no_device 'there is no RDMA device'
	udevadm settle --timeout=20
	# The name stays if udev has no rule for it.
	lab_until 5 is_renamed || true
	find_rdma
	if ! lab_until 60 find_gids; then
		echo "no GID holds the address $MY_IP, or none holds $MY_IP6"
		exit 1
	fi
fi
printf 'export %q\n' "$@" "NETDEV=$NETDEV" "RDMA_DEV=$RDMA_DEV" "GID_INDEX=$GID_INDEX" \
	"GID_INDEX6=$GID_INDEX6" >/run/lab.env
