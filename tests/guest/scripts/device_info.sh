#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# What libibverbs' tools and the kernel tell of the device.
. /lab/lib.sh
set -u

INFO=/tmp/devinfo
fail() {
	ibv_devices
	cat $INFO
	echo "$1"
	exit 1
}

guid=$(tr -d : <"/sys/class/infiniband/$RDMA_DEV/node_guid")
ibv_devices | grep -Eq "^ *${RDMA_DEV}[[:space:]]+$guid$" || fail "ibv_devices does not list it with its GUID"
ibv_devinfo -v -d "$RDMA_DEV" >$INFO || fail "ibv_devinfo fails"
shows() { grep -Eq "^[[:space:]]*$1$" $INFO || fail "there is no line $1"; }
shows "hca_id:[[:space:]]*$RDMA_DEV"
shows "state:[[:space:]]*PORT_ACTIVE \(4\)"
shows "link_layer:[[:space:]]*Ethernet"
shows "GID\[ *$GID_INDEX\]:[[:space:]]*::ffff:$MY_IP, RoCE v2"

# What the kernel shows of it: vectors by the function's address, the driver's own counter among the device's.
pci=$(ethtool -i "$NETDEV" | sed -n 's/^bus-info: //p')
for vector in async-0 faults-1 comp-2; do
	grep -q "faultline-$vector@pci:$pci$" /proc/interrupts ||
		fail "/proc/interrupts has no $vector of $pci: $(grep faultline /proc/interrupts)"
done
[ "$(cat "/sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters/lost_interrupts")" -ge 0 ] ||
	fail "no counter of lost interrupts"
rdma statistic show link "$RDMA_DEV/1" | grep -q "lost_interrupts [0-9]" || fail "rdma does not count lost interrupts"
ethtool -S "$NETDEV" | grep -q "lost_interrupts: [0-9]" || fail "ethtool does not count lost interrupts"
firmware=$(cat "/sys/class/infiniband/$RDMA_DEV/fw_ver")
devlink -j dev info "pci/$pci" | grep -q "\"fw\":\"$firmware\",\"fw.mgmt.api\":\"2\." ||
	fail "devlink does not tell the versions: $(devlink -j dev info "pci/$pci")"
# Tools find the function, its NUMA node and the netdev by this link. libibverbs needs it, too: by another name the device is the same.
[ "/sys/class/infiniband/$RDMA_DEV/device" -ef "/sys/class/net/$NETDEV/device" ] || fail "the RDMA device is not of $pci"
rdma dev set "$RDMA_DEV" name other0
ibv_devinfo -d other0 | grep -q PORT_ACTIVE || fail "libibverbs does not find the device by another name"
rdma dev set other0 name "$RDMA_DEV"
[ -n "$(modinfo -F author faultline)" ] || fail "the module has no author"

# The words of a heading's lines, up to the next heading.
block() { sed -n "/^\t$1:/,/^\t[a-z]/p" $INFO | xargs; }
case $(block general_odp_caps) in
*' ODP_SUPPORT ODP_SUPPORT_IMPLICIT '*) ;;
*) fail "no on-demand paging" ;;
esac
for transport in rc xrc; do
	caps=$(block ${transport}_odp_caps)
	for name in SEND RECV WRITE READ ATOMIC SRQ; do
		case $caps in
		*" SUPPORT_$name "*) ;;
		*) fail "$transport has no $name on demand" ;;
		esac
	done
done
echo PASS
