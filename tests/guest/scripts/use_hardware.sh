#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Puts devices beyond disk and NIC into use: use_hardware [zram=MIB] [swap_disk] [pmem] [huge_pages=COUNT] [further_nics]
. /lab/lib.sh
set -e

# Gives the NICs besides the first their addresses: 10.78.0.0/24 and fd78::/64 are those of the second NICs, and so on. Their variables
# have the number behind the name: NETDEV2, RDMA_DEV2, MY_IP2, PEER_IP2, GID_INDEX2.
further_nics() {
	local function number host=$((GUEST_INDEX + 1)) peer=${PEER_IP##*.}
	local NETDEV RDMA_DEV ip gid
	has_gid() {
		RDMA_DEV=$(lab_first "$function/infiniband") && gid=$(lab_gid_index "$ip") && [ -n "$gid" ]
	}
	lab_find_functions
	udevadm settle --timeout=20
	# All NICs are on one switch. Each answers ARP for its own addresses only, and asks from one of them.
	sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
	for ((number = 2; number <= ${#LAB_FUNCTIONS[@]}; number++)); do
		function=${LAB_FUNCTIONS[number - 1]}
		NETDEV=$(lab_first "$function/net")
		ip=10.$((76 + number)).0.$host
		sysctl -qw "net.ipv6.conf.$NETDEV.accept_dad=0" "net.ipv6.conf.$NETDEV.keep_addr_on_down=1"
		ip link set "$NETDEV" up
		ip address add "$ip/24" dev "$NETDEV"
		ip address add "fd$((76 + number))::$host/64" dev "$NETDEV" nodad
		lab_until 60 has_gid
		printf 'export %q\n' "NETDEV$number=$NETDEV" "RDMA_DEV$number=$RDMA_DEV" "MY_IP$number=$ip" \
			"PEER_IP$number=10.$((76 + number)).0.$peer" "GID_INDEX$number=$gid" >>/run/lab.env
	done
}

for part in "$@"; do
	case $part in
	zram=*)
		modprobe zram
		echo "${part#*=}M" >/sys/block/zram0/disksize
		mkswap -q /dev/zram0
		swapon -p 100 /dev/zram0
		;;
	swap_disk)
		disk=$(grep -lx swap /sys/block/vd*/serial | cut -d/ -f4)
		mkswap -q "/dev/$disk"
		swapon "/dev/$disk"
		;;
	pmem)
		modprobe -a virtio_pmem nd_pmem
		lab_until 10 test -b /dev/pmem0
		mkdir -p /mnt/dax
		mount -t ext4 -o dax=always /dev/pmem0 /mnt/dax
		# A kernel that cannot do it mounts without, and says so.
		grep -q ' /mnt/dax .*dax=always' /proc/mounts
		;;
	huge_pages=*)
		echo "${part#*=}" >/proc/sys/vm/nr_hugepages
		[ "$(cat /proc/sys/vm/nr_hugepages)" -ge "${part#*=}" ]
		;;
	further_nics)
		further_nics
		;;
	*)
		echo "unknown hardware: $part"
		exit 2
		;;
	esac
done
