#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The device of this guest fails, and its driver recovers it.
#
#	recovery remember	notes what must be the same afterwards, and how often the device has failed
#	recovery counted COUNT	waits for COUNT failures since then that were recovered
#	recovery healthy	waits until the device works, however often it has failed
#	recovery given_up	waits until the driver has given up
#	recovery handle		prints the name of the devlink instance
#	recovery same		everything is as it was
#	recovery no_more	the same, but objects may have gone: a server of NFS ends connections whose clients have vanished, which
#				earlier failures have left there, after some minutes
#	recovery lasting	prints the state that a recovery does not change
#	recovery memory		prints the KiB of memory that the kernel itself has
#	recovery unbind, bind	takes the device from its driver and gives it back
#	recovery watchdogs N	1: the kernel looks for processors that are stuck; 0: it does not
#	recovery offer_rds	starts the peer of the load rds in the other guest
#	recovery end_rds	ends it
#	recovery load NAME	starts a load: listener, disk, files (NFS), rds, lease
#	recovery goes_on NAME	the load works, or works again
#	recovery end NAME	ends it
#	recovery read_disk	reads a block of the disk
#	recovery suspend	suspends the machine to memory; its clock wakes it up
#	recovery reset		resets the function
#	recovery reload		reloads the devlink instance
. /lab/lib.sh
set -eu

NOTES=/run/recovery
NQN=nqn.2026-11.example:faultline
DISK=/dev/nvme0n1
MIB=16

slot() {
	local slots=(/sys/bus/pci/drivers/faultline/0000:*)
	[ -e "${slots[0]}" ]
	echo "${slots[0]##*/}"
}

# Errors and recoveries that devlink has counted, and the state.
health() {
	devlink -j health show "pci/$(slot)" reporter fatal |
		python3 -c 'import json, sys
[shown] = next(iter(json.load(sys.stdin)["health"].values()))
print(shown["error"], shown["recover"], shown["state"])'
}

# What a recovery does not change: netdev, addresses, GIDs, and the objects of the kernel's own consumers.
lasting() {
	echo "index $(cat "/sys/class/net/$NETDEV/ifindex") $(cat "/sys/class/net/$NETDEV/address")"
	ip -o address show dev "$NETDEV" | sed 's/.*inet/inet/; s/ *valid_lft.*//; s/\\.*//' | sort
	echo "mtu $(cat "/sys/class/net/$NETDEV/mtu")"
	ethtool -l "$NETDEV" | grep -i combined
	lab_is_iwarp || echo "gid $(lab_gid_index "$MY_IP") $(lab_gid_index "$MY_IP6")"
	# The RDMA core keeps CQs that consumers in the kernel have shared (ib_cq_pool_put()).
	rdma resource show "$RDMA_DEV" | sed 's/^[0-9]*: //; s/ cq [0-9]*//'
}

works_again() {
	[ "$(cat "/sys/class/infiniband/$RDMA_DEV/ports/1/state")" = "4: ACTIVE" ] || return
	lab_is_iwarp || [ "$(lab_gid_index "$MY_IP")" = "$GID_INDEX" ]
}

are_counted() {
	local errors recoveries state first_errors first_recoveries
	read -r errors recoveries state <<<"$(health)"
	read -r first_errors first_recoveries _ <"$NOTES.health"
	[ "$((errors - first_errors)) $((recoveries - first_recoveries)) $state" = "$1 $1 healthy" ]
}

is_healthy() {
	[ "$(health | cut -d' ' -f3)" = healthy ] && works_again
}

is_given_up() {
	dmesg | grep -q 'not recovered after 8 attempts'
}

is_same() {
	lasting >"$NOTES.now" && cmp -s "$NOTES.lasting" "$NOTES.now"
}

# The last line counts objects: "DEVICE: pd 4 qp 4 …".
has_no_more() {
	local before now at

	lasting >"$NOTES.now"
	[ "$(head -n -1 "$NOTES.lasting")" = "$(head -n -1 "$NOTES.now")" ] || return
	read -ra before <<<"$(tail -n 1 "$NOTES.lasting")"
	read -ra now <<<"$(tail -n 1 "$NOTES.now")"
	[ ${#before[@]} = ${#now[@]} ] || return
	for ((at = 2; at < ${#now[@]}; at += 2)); do
		[ "${before[at - 1]}" = "${now[at - 1]}" ] && [ "${now[at]}" -le "${before[at]}" ] || return
	done
}

remember() {
	lasting >"$NOTES.lasting"
	health >"$NOTES.health"
}

counted() {
	lab_until 40 are_counted "$1" || { cat "$NOTES.health"; health; dmesg | tail -n 20; exit 1; }
	lab_until 30 works_again || { rdma link; dmesg | tail -n 20; exit 1; }
}

healthy() {
	lab_until 60 is_healthy || { health; rdma link; dmesg | tail -n 20; exit 1; }
}

given_up() {
	lab_until 200 is_given_up || { dmesg | tail -n 20; exit 1; }
}

compared() {
	lab_until 20 "$1" || { diff "$NOTES.lasting" "$NOTES.now"; exit 1; }
}

same() {
	compared is_same
}

no_more() {
	compared has_no_more
}

handle() {
	echo "pci/$(slot)"
}

# All memory but what is free (also on the list of each processor), what processes and files have (pages, page tables, stacks, caches of
# files, pages in compressed swap), and caches that the kernel would give back: programs beside the test do not count. What the kernel
# frees later is in some readings only: the least one counts.
memory() {
	local least='' kib compressed=(/sys/block/zram*/mm_stat)

	[ -e "${compressed[0]}" ] || compressed=()
	echo 3 >/proc/sys/vm/drop_caches
	for _ in {1..20}; do
		kib=$(awk '/^MemTotal:/ {kib += $2}
			/^(MemFree|Active|Inactive|Unevictable|SReclaimable|PageTables|KernelStack):/ {kib -= $2}
			/^ +count:/ {kib -= 4 * $2}
			FILENAME ~ /mm_stat/ {kib -= $3 / 1024}
			END {print int(kib)}' /proc/meminfo /proc/zoneinfo "${compressed[@]}")
		[ -n "$least" ] && [ "$least" -le "$kib" ] || least=$kib
		sleep 0.1
	done
	echo "$least"
}

unbind() {
	slot >"$NOTES.slot"
	cat "$NOTES.slot" >/sys/bus/pci/drivers/faultline/unbind
}

bind() {
	cat "$NOTES.slot" >/sys/bus/pci/drivers/faultline/bind
}

reset() {
	echo 1 >"/sys/bus/pci/devices/$(slot)/reset"
}

reload() {
	devlink dev reload "pci/$(slot)"
}

# An alarm before the machine sleeps ends the attempt, because wakeup_count was written. Then more time is needed.
suspend() {
	local alarm=/sys/class/rtc/rtc0/wakealarm seconds before events

	before=$(cat /sys/power/suspend_stats/success)
	echo deep >/sys/power/mem_sleep
	for seconds in 4 8 16 32; do
		events=$(cat /sys/power/wakeup_count)
		echo "$events" >/sys/power/wakeup_count
		echo 0 >$alarm
		echo +$seconds >$alarm
		echo mem >/sys/power/state && break
	done
	[ "$(cat /sys/power/suspend_stats/success)" = $((before + 1)) ]
}

watchdogs() {
	# A kernel may have none.
	[ ! -e /proc/sys/kernel/soft_watchdog ] || echo "$1" >/proc/sys/kernel/soft_watchdog
	echo $((1 - $1)) >/sys/module/rcupdate/parameters/rcu_cpu_stall_suppress
}

offer_rds() {
	modprobe rds_rdma
	rds_pair "$MY_IP" >/run/rds.log 2>&1 &
	lab_until 20 lab_listens 18640
}

# Without the module, connections of RDS last as long as the kernel.
end_rds() {
	lab_until 20 grep -q 'all right' /run/rds.log || { cat /run/rds.log; exit 1; }
	lab_until 20 modprobe -r rds_rdma
}

load() {
	case $1 in
	listener)
		# Of any address, so of any device.
		rping -s -P -V -a 0.0.0.0 >/run/rping.log 2>&1 &
		echo $! >"$NOTES.listener"
		lab_until 20 rping -c -V -a "$MY_IP" -C 1
		;;
	disk)
		modprobe nvme-rdma
		# Try again each second, for a minute.
		reach() {
			echo "transport=rdma,traddr=$PEER_IP,trsvcid=4420,nqn=$NQN,reconnect_delay=1,ctrl_loss_tmo=60,nr_io_queues=2" >/dev/nvme-fabrics
		}
		lab_until 30 reach
		lab_until 30 test -b $DISK
		head -c $((MIB << 20)) /dev/urandom >/run/written
		write_disk
		;;
	files)
		modprobe -a nfs rpcrdma
		mkdir -p /mnt/nfs
		reach() { mount -t nfs -o vers=4.2,proto=rdma,port=20049,sec=sys "$PEER_IP:/" /mnt/nfs; }
		lab_until 60 reach
		head -c $((MIB << 20)) /dev/urandom >/run/written
		# Writes and reads back until it is stopped, also while there is no device.
		while [ ! -e "$NOTES.enough" ]; do
			dd if=/run/written of=/mnt/nfs/written bs=64k conv=fsync status=none
			dd if=/mnt/nfs/written bs=64k iflag=direct status=none | cmp - /run/written
		done >"$NOTES.files" 2>&1 &
		echo $! >"$NOTES.writer"
		lab_until 20 test -s /mnt/nfs/written
		;;
	rds)
		modprobe rds_rdma
		rds_pair --until "$NOTES.enough_rds" "$MY_IP" "$PEER_IP" >/run/rds.log 2>&1 &
		lab_until 30 grep -q 'first message' /run/rds.log || { cat /run/rds.log; exit 1; }
		;;
	lease)
		lease_held >"$NOTES.lease" 2>&1 &
		lab_until 20 grep -q 'the change waits' "$NOTES.lease"
		;;
	esac
}

write_disk() {
	dd if=/run/written of=$DISK bs=64k oflag=direct conv=fsync status=none
	dd if=$DISK bs=64k count=$((MIB * 16)) iflag=direct status=none | cmp - /run/written
}

read_disk() {
	dd if=$DISK of=/dev/null bs=4k count=1 iflag=direct status=none
}

goes_on() {
	case $1 in
	listener)
		kill -0 "$(cat "$NOTES.listener")"
		rping -c -V -a "$MY_IP" -C 10
		;;
	disk)
		lab_until 30 grep -q live /sys/class/nvme/nvme0/state
		timeout 60 bash -c "$(declare -f write_disk); DISK=$DISK MIB=$MIB; write_disk"
		;;
	files)
		touch "$NOTES.enough"
		has_ended() { ! kill -0 "$(cat "$NOTES.writer")"; }
		lab_until 60 has_ended
		# It has seen no error, and the server has its data.
		cat "$NOTES.files"
		[ ! -s "$NOTES.files" ]
		echo 3 >/proc/sys/vm/drop_caches
		cmp /run/written /mnt/nfs/written
		;;
	rds)
		# No message is lost, and each comes back as it was sent.
		touch "$NOTES.enough_rds"
		lab_until 60 grep -q 'all right' /run/rds.log || { cat /run/rds.log; dmesg | tail -n 30; exit 1; }
		;;
	lease)
		lab_until 20 grep -q PASS "$NOTES.lease" || { cat "$NOTES.lease"; exit 1; }
		;;
	esac
}

end() {
	case $1 in
	listener) kill "$(cat "$NOTES.listener")" ;;
	disk)
		echo 1 >/sys/class/nvme/nvme0/delete_controller
		lab_until 20 modprobe -r nvme-rdma
		;;
	files)
		rm -f "$NOTES.enough" /mnt/nfs/written
		umount /mnt/nfs
		;;
	rds)
		rm "$NOTES.enough_rds"
		end_rds
		;;
	esac
}

"$@"
