# shellcheck shell=bash
# Sourced before every guest script: where the NIC is, and small helpers. Plain bash.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8
PS1='[\h \w]# '

# The name of the first entry of a folder, or nothing.
lab_first() {
	local entries=("$1"/*)
	if [ -e "${entries[0]}" ]; then
		echo "${entries[0]##*/}"
	fi
}

# The PCI ID and the subsystem ID of Faultline's function. A configuration may give it another PCI ID.
LAB_PCI_ID="0x1af4 0x10f0"

# Lists Faultline's functions in LAB_FUNCTIONS. Under TCG each process takes some 20 ms; this starts none.
lab_find_functions() {
	local dev vendor device
	LAB_FUNCTIONS=()
	for dev in /sys/bus/pci/devices/*; do
		read -r vendor <"$dev/subsystem_vendor"
		read -r device <"$dev/subsystem_device"
		if [ "$vendor $device" = "$LAB_PCI_ID" ]; then
			LAB_FUNCTIONS+=("$dev")
		fi
	done
}

# The first of Faultline's functions, or nothing.
lab_function() {
	lab_find_functions
	[ ${#LAB_FUNCTIONS[@]} = 0 ] || echo "${LAB_FUNCTIONS[0]}"
}

# Tells the driver the ID of a function that has another one than the driver knows.
lab_add_pci_id() {
	local function vendor device
	function=$(lab_function)
	[ -n "$function" ] && [ ! -e "$function/driver" ] || return 0
	read -r vendor <"$function/vendor"
	read -r device <"$function/device"
	[ "$vendor $device" != "$LAB_PCI_ID" ] || return 0
	modprobe faultline && echo "$vendor $device" >/sys/bus/pci/drivers/faultline/new_id
}

# The network interface of the device under test: faultline's own, or the one that rxe runs on.
lab_netdev() {
	local dev
	dev=$(lab_function)
	if [ -n "$dev" ]; then
		lab_first "$dev/net"
		return
	fi
	for dev in /sys/class/net/*; do
		if [ "$dev/device/driver" -ef /sys/bus/virtio/drivers/virtio_net ]; then
			echo "${dev##*/}"
			return
		fi
	done
}

# The RDMA device of the device under test, or nothing.
lab_rdma_device() {
	local function
	function=$(lab_function)
	if [ -n "$function" ]; then
		lab_first "$function/infiniband"
	else
		lab_first /sys/class/infiniband
	fi
}

# True if the RDMA device is an iWARP adapter, whose queue pairs rdma_cm connects.
lab_is_iwarp() {
	local type
	{ read -r type <"/sys/class/infiniband/$RDMA_DEV/node_type"; } 2>/dev/null && [ "${type#*: }" = RNIC ]
}

# The index of the RoCE v2 GID of the given address. IPv6 ones are PREFIX::HOST.
lab_gid_index() {
	local want=$1 dir=/sys/class/infiniband/$RDMA_DEV/ports/1 index gid type
	if [ "${want//::/}" = "$want" ]; then
		# shellcheck disable=SC2086 # four words
		want=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${want//./ })
	else
		want=$(printf '%04x:0000:0000:0000:0000:0000:0000:%04x' "0x${want%%::*}" "0x${want##*::}")
	fi
	for ((index = 0; ; index++)); do
		[ -e "$dir/gids/$index" ] || return 0
		# Those that are not in use can't be read.
		{ read -r gid <"$dir/gids/$index" && read -r type <"$dir/gid_attrs/types/$index"; } 2>/dev/null || continue
		if [ "$gid $type" = "$want RoCE v2" ]; then
			echo "$index"
			return
		fi
	done
}

# First octets of addresses that take the place of this guest's in the table of GIDs.
LAB_PLACEHOLDER=169.254.77

# Whether the given address has a GID.
lab_has_gid() {
	[ -n "$(lab_gid_index "$1")" ]
}

lab_has_no_gid() {
	! lab_has_gid "$1"
}

# Moves the GID of this guest's IPv4 address to another index, as when an interface gets its addresses in another order. A
# further address takes the entry that becomes free, so each move leads to an entry that the GID has not had. Each move is a line of
# /run/lab.gid_moves.
lab_move_gid() {
	local old new cidr
	old=$(lab_gid_index "$MY_IP")
	cidr=$(ip -4 -o address show dev "$NETDEV" | grep -o "$MY_IP/[0-9]*") || return
	# An entry stays taken while a queue pair uses it. If the queue pair ends meanwhile, the further address takes that entry and
	# the GID gets its old one: then one more address is needed.
	while :; do
		lab_put_gid_last "$cidr" || return
		new=$(lab_gid_index "$MY_IP")
		[ "$new" = "$old" ] || break
	done
	echo "$old $new" >>/run/lab.gid_moves
}

# Takes this guest's IPv4 address away, adds a further address, and adds the former (with the given length of its prefix) again.
lab_put_gid_last() {
	local cidr=$1 further
	further=$LAB_PLACEHOLDER.$(($(ip -4 -o address show dev "$NETDEV" | grep -c "$LAB_PLACEHOLDER") + 1))
	# The kernel changes the table after the commands have ended.
	ip address delete "$cidr" dev "$NETDEV" && lab_until 20 lab_has_no_gid "$MY_IP" || return
	ip address add "$further/32" dev "$NETDEV" && lab_until 20 lab_has_gid "$further" || return
	ip address add "$cidr" dev "$NETDEV" && lab_until 20 lab_has_gid "$MY_IP"
}

# Moves the GID back to the index that programs know. The queue pairs that use the other one must have gone.
lab_restore_gid() {
	lab_until 20 lab_gid_is_restored
}

lab_gid_is_restored() {
	local cidr
	ip -4 -o address show dev "$NETDEV" | grep -o "$LAB_PLACEHOLDER\.[0-9]*/32" |
		xargs -r -n 1 ip address delete dev "$NETDEV"
	[ "$(lab_gid_index "$MY_IP")" != "$GID_INDEX" ] || return 0
	cidr=$(ip -4 -o address show dev "$NETDEV" | grep -o "$MY_IP/[0-9]*") || return
	ip address delete "$cidr" dev "$NETDEV"
	ip address add "$cidr" dev "$NETDEV"
	lab_pause
	[ "$(lab_gid_index "$MY_IP")" = "$GID_INDEX" ]
}

# Waits a tenth of a second without starting a process: nothing is ever written to this FIFO.
lab_pause() {
	read -rt 0.1 <>/run/lab.pause || true
}

# True if a server listens on a TCP port of this guest. Starts no process.
lab_listens() {
	local table port lines line
	printf -v port '%04X' "$1"
	for table in /proc/net/tcp /proc/net/tcp6; do
		mapfile -t lines <$table
		for line in "${lines[@]}"; do
			# Number, local and remote address, state.
			# shellcheck disable=SC2086
			set -- $line
			if [ "${2##*:} $4" = "$port 0A" ]; then
				return 0
			fi
		done
	done
	return 1
}

# Prints how many TCP ports and connection manager ids of this guest listen.
lab_listeners() {
	local table line lines fields count
	count=$(rdma resource show cm_id 2>/dev/null | grep -c LISTEN)
	for table in /proc/net/tcp /proc/net/tcp6; do
		mapfile -t lines <$table
		for line in "${lines[@]}"; do
			read -ra fields <<<"$line"
			[ "${fields[3]}" != 0A ] || count=$((count + 1))
		done
	done
	echo "$count"
}

# Puts the number of RoCE packets that this guest's NIC has sent into a variable. Starts no process. Segments of iWARP count as frames.
lab_sent() {
	local lab_counters="/sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters" lab_counter=tx_roce_packets
	! lab_is_iwarp || lab_counter=tx_ethernet_packets
	# The name of rxe.
	[ -e "$lab_counters/$lab_counter" ] || lab_counter=sent_pkts
	read -r "$1" <"$lab_counters/$lab_counter"
}

# Waits until this guest's NIC has sent COUNT more RoCE packets: lab_flows COUNT
lab_flows() {
	local lab_first
	lab_sent lab_first
	lab_until 20 lab_has_sent $((lab_first + $1))
}

lab_has_sent() {
	local lab_now
	lab_sent lab_now
	[ "$lab_now" -ge "$1" ]
}

# Puts the octets of RoCE packets that this guest's NIC has sent and received into a variable. rdma_rxe does not count them.
lab_octets() {
	local lab_port=/sys/class/infiniband/$RDMA_DEV/ports/1/counters lab_out lab_in
	read -r lab_out <"$lab_port/port_xmit_data" && read -r lab_in <"$lab_port/port_rcv_data" || return
	# Words of four octets.
	printf -v "$1" %d $((4 * (lab_out + lab_in)))
}

# Remembers how many octets of RoCE packets there have been, for lab_has_carried.
lab_count_carried() {
	LAB_CARRIED=''
	[ ! -e "/sys/class/infiniband/$RDMA_DEV/ports/1/counters" ] || lab_octets LAB_CARRIED
}

# Fails unless RoCE packets have carried MIB MiB since lab_count_carried: lab_has_carried MIB
lab_has_carried() {
	local lab_now
	[ -n "$LAB_CARRIED" ] || return 0
	lab_octets lab_now || return
	if [ $((lab_now - LAB_CARRIED)) -lt $(($1 << 20)) ]; then
		echo "RoCE packets have carried $((lab_now - LAB_CARRIED)) octets, and not $1 MiB"
		return 1
	fi
}

# Succeeds if a process of a PROGRAM has connected a queue pair: lab_is_connected PROGRAM
lab_is_connected() {
	rdma resource show qp | grep -Eq " state RTS .* comm $1( |\$)"
}

# Starts the COMMAND of a server and lets the other guest go on (lab_call) when CONDITION succeeds: lab_serve CONDITION COMMAND…
# Its process is $LAB_SERVER, its output in /run/lab.server.
lab_serve() {
	local condition=$1
	shift
	"$@" >/run/lab.server 2>&1 &
	LAB_SERVER=$!
	lab_until 20 eval "$condition" || { cat /run/lab.server; return 1; }
	lab barrier lab_serve
}

# Waits for the end of the server.
lab_served() {
	wait "$LAB_SERVER" || { cat /run/lab.server; return 1; }
}

# Runs the COMMAND of a client when the other guest's server is ready (lab_serve). This guest's NIC must send at least so many RoCE
# packets meanwhile: lab_call COUNT COMMAND…
lab_call() {
	local before after count=$1
	shift
	lab barrier lab_serve
	lab_sent before
	"$@" || { echo "failed: $*"; return 1; }
	lab_sent after
	echo "$((after - before)) RoCE packets"
	[ $((after - before)) -ge "$count" ] || { echo "they are less than $count: the data went another way"; return 1; }
}

# Succeeds if a process of a PROGRAM listens through the connection manager: lab_listens_cm PROGRAM. Another program may listen since an
# earlier test.
lab_listens_cm() {
	# The kernel keeps 15 characters of a name.
	rdma resource show cm_id | grep -Eq " state LISTEN .* comm ${1:0:15}( |\$)"
}

# Prints the option by which a program of perftest connects.
lab_way() {
	if lab_is_iwarp; then echo -R; else echo "-x $GID_INDEX"; fi
}

# Succeeds if a server of perftest waits for its client: lab_awaits PROGRAM PORT
lab_awaits() {
	if lab_is_iwarp; then lab_listens_cm "$1"; else lab_listens "$2"; fi
}

# Waits until COMMAND succeeds: lab_until SECONDS COMMAND… The limit is multiplied by LAB_TIME_FACTOR, because machines are
# shared and some kernels slow.
lab_until() {
	local end=$((SECONDS + $1 * ${LAB_TIME_FACTOR:-1}))
	shift
	until "$@" >/dev/null 2>&1; do
		if [ $SECONDS -ge $end ]; then
			echo "gave up waiting for: $*" >&2
			return 1
		fi
		lab_pause
	done
}

# Loads modules that Debian's kernels have switched off, with those that they need: lab_insmod NAME…
lab_insmod() {
	local name file depends
	for name in "$@"; do
		file=/usr/lib/modules/$(uname -r)/upstream/$name.ko
		if [ ! -f "$file" ]; then
			modprobe "$name" || return
		elif [ ! -d "/sys/module/${name//-/_}" ]; then
			depends=$(modinfo -F depends "$file")
			# shellcheck disable=SC2086 # names of modules
			lab_insmod ${depends//,/ } && insmod "$file" || return
		fi
	done
}

# Ends the script unless COMMAND fails: lab_fails COMMAND…
lab_fails() {
	if "$@"; then
		echo "this must fail, and did not: $*" >&2
		exit 1
	fi
}

# A script that ends at its first failure (set -e) says what has failed.
set -E
trap '[[ $- != *e* ]] || echo "failed: $BASH_COMMAND" >&2' ERR

if [ -f /run/lab.env ]; then
	. /run/lab.env
fi
