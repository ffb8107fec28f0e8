# Sourced before every guest script: where the NIC is, and small helpers. Plain bash.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8
PS1='[\h \w]# '

# The network interface of the device under test: faultline's own, or the one that rxe runs on.
lab_netdev() {
	local dev
	for dev in /sys/bus/pci/devices/*; do
		if [ "$(cat "$dev/vendor") $(cat "$dev/device")" = "0x1af4 0x10f0" ]; then
			ls "$dev/net" 2>/dev/null | head -n 1
			return
		fi
	done
	for dev in /sys/class/net/*; do
		if [ "$(basename "$(readlink -f "$dev/device/driver" 2>/dev/null)")" = virtio_net ]; then
			basename "$dev"
			return
		fi
	done
}

# The RDMA device of the device under test, or nothing.
lab_rdma_device() {
	ls /sys/class/infiniband 2>/dev/null | head -n 1
}

# The index of the RoCE v2 GID of the given IPv4 address (default: this guest's own).
lab_gid_index() {
	local want=${1:-$MY_IP} dir=/sys/class/infiniband/$RDMA_DEV/ports/1 index gid
	want=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${want//./ })
	for index in $(ls "$dir/gid_attrs/types" | sort -n); do
		gid=$(cat "$dir/gids/$index" 2>/dev/null)
		if [ "$gid" = "$want" ] && grep -q 'RoCE v2' "$dir/gid_attrs/types/$index" 2>/dev/null; then
			echo "$index"
			return
		fi
	done
}

# Waits until COMMAND succeeds: lab_until SECONDS COMMAND… On a slow kernel the seconds are longer.
lab_until() {
	local end=$((SECONDS + $1 * ${LAB_PATIENCE:-1}))
	shift
	until "$@" >/dev/null 2>&1; do
		if [ $SECONDS -ge $end ]; then
			echo "gave up waiting for: $*" >&2
			return 1
		fi
		sleep 0.1
	done
}

# A script that ends at its first failure (set -e) says what has failed.
set -E
trap '[[ $- != *e* ]] || echo "failed: $BASH_COMMAND" >&2' ERR

if [ -f /run/lab.env ]; then
	. /run/lab.env
fi
