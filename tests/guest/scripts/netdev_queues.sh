#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# TCP streams over two queues, queues that are added and removed under streams, and a table that steers them.
#
#	netdev_queues server	takes a stream at each port from 5001 on, returns what it gets at port 5019, and says how the receive queues shared them
#	netdev_queues client	sends them
. /lab/lib.sh
set -eu

stat() { ethtool -S "$NETDEV" | sed -n "s/^ *$1: //p"; }

# The client waits for the first port, which therefore is the last one to be there.
server() {
	local port pids=() pid before0 before1 received0 received1
	ready() { local port; for port in $(seq 5002 5019); do lab_listens "$port" || return 1; done; }
	before0=$(stat rx0_packets)
	before1=$(stat rx1_packets)
	for port in $(seq 5002 5018); do
		lab stream-receive "$port" &
		pids+=($!)
	done
	# Echoes all data, until the client ends.
	rm -f /run/answers && mkfifo /run/answers
	nc -l 5019 <>/run/answers >&0 &
	pids+=($!)
	lab_until 10 ready || exit 1
	lab stream-receive 5001 &
	pids+=($!)
	for pid in "${pids[@]}"; do
		wait "$pid" || exit 1
	done
	received0=$(($(stat rx0_packets) - before0))
	received1=$(($(stat rx1_packets) - before1))
	echo "$received0 packets in queue 0, $received1 in queue 1"
	[ $received0 -ge 250 ] && [ $received1 -ge 250 ]
}

channels() { ethtool -l "$NETDEV" | sed '1,/^Current/d' | sed -n 's/^Combined:[^0-9]*//p'; }

# How many entries of the table lead to each queue.
places() {
	ethtool -x "$NETDEV" | sed -n 's/^ *[0-9]*: *\([0-9 ]*[0-9]\) *$/\1/p' | tr -s ' ' '\n' | sort | uniq -c | xargs
}

# Streams to COUNT ports from FIRST on: streams FIRST COUNT BYTES [OPTION…]
streams() {
	local port first=$1 count=$2
	shift 2
	pids=()
	for port in $(seq "$first" $((first + count - 1))); do
		lab stream-send "$PEER_IP:$port" "$@" &
		pids+=($!)
	done
}

end() {
	local pid
	for pid in "${pids[@]}"; do
		wait "$pid"
	done
}

works() { ping -q -c 3 -i 0.2 -W 2 "$PEER_IP"; }
note() { echo "$((SECONDS - began)) s: $*"; }
counts() { echo "$(stat rx0_packets) $(stat rx1_packets) $(stat tx0_packets) $(stat tx1_packets)"; }

# Without a program where it can be: beside the streams, starting one takes seconds on the debug kernel.
sent() { read -r "$1" <"/sys/class/net/$NETDEV/statistics/tx_packets"; }
# TCP waits about as long again as the change took, which only the test's own limit bounds.
flows() {
	local mark now start=$SECONDS
	sent mark
	until sent now; [ "$now" -ge $((mark + 50)) ]; do
		if [ $((SECONDS - start)) -ge 60 ]; then
			note "$((now - mark)) packets in a minute"
			tc -s qdisc show dev "$NETDEV"
			ethtool -S "$NETDEV"
			ss -tino
			grep ^TcpExt /proc/net/netstat
			return 1
		fi
		sleep 0.1
	done
}

# Requests one after the other on one connection, until a file exists. A frame that waits for a queue which the driver has
# stopped is the only one of its connection: nothing but the driver can send it when the queue starts again.
requests() {
	local number=0 answer
	exec 3<>"/dev/tcp/$PEER_IP/5019"
	until [ -e "$1" ]; do
		number=$((number + 1))
		echo "$number" >&3
		read -r -t 60 answer <&3 || { echo "request $number has no answer"; return 1; }
		[ "$answer" = "$number" ] || return 1
		echo "$number" 1<>/run/answered
	done
	echo "$number requests"
}

# The first frames. On a busy host, a guest may not run for as long as ARP waits (3 s), so that streams find no route.
reached() {
	lab_until 30 ping -q -c 1 -W 1 "$PEER_IP" && return
	ip -s link show dev "$NETDEV"
	ip -s neigh
	ethtool -S "$NETDEV"
	return 1
}

client() {
	local pids=() began=$SECONDS before after queue ip_rx count other own key
	reached
	note "the peer has answered"
	ethtool -l "$NETDEV"
	[ "$(channels)" = 2 ]
	[ "$(places)" = '64 0 64 1' ]
	lab_fails ethtool -L "$NETDEV" combined 3
	lab_fails ethtool -L "$NETDEV" combined 0
	[ "$(cat "/sys/class/net/$NETDEV/queues/tx-0/xps_cpus" "/sys/class/net/$NETDEV/queues/tx-1/xps_cpus" | xargs)" = '1 2' ]

	before=$(counts)
	streams 5001 16 262144
	end
	after=$(counts)
	note "rx0 rx1 tx0 tx1 $before to $after"
	# Its ports, which are random, decide in which receive queue a stream is. In one run of 100 a queue has two of the 16 streams, of
	# which each gets some 25 acknowledgements.
	more() { [ "$(echo "$after" | cut -d ' ' -f "$1")" -ge $(($(echo "$before" | cut -d ' ' -f "$1") + $2)) ]; }
	more 1 20
	more 2 20
	more 3 100
	more 4 100
	# The sum of the queues is the count of the interface.
	ip_rx=$(cat "/sys/class/net/$NETDEV/statistics/rx_packets")
	[ $(($(stat rx0_packets) + $(stat rx1_packets))) -ge "$ip_rx" ]

	# Channels change while streams run, and nothing of them is lost.
	rm -f /run/changed
	streams 5017 2 $((1 << 40)) --until /run/changed
	flows
	for count in 1 2 1 2; do
		ethtool -L "$NETDEV" combined $count
		note "$count channels"
		[ "$(channels)" = $count ]
		flows
	done
	touch /run/changed
	end
	note "the streams have ended"

	rm -f /run/changed
	echo 0 >/run/answered
	requests /run/changed &
	pids=($!)
	answered() { read -r after </run/answered && [ "$after" -ge $((before + 5)) ]; }
	for count in 1 2 1 2 1 2 1 2 1 2; do
		read -r before </run/answered
		lab_until 20 answered || { echo "no answers after $before requests"; return 1; }
		ethtool -L "$NETDEV" combined $count
	done
	touch /run/changed
	end
	note "the requests have ended"

	# One queue: the other is not used. The table and the key go another way at once.
	ethtool -L "$NETDEV" combined 1
	[ "$(places)" = '128 0' ]
	before=$(stat rx1_packets)
	works
	[ "$(stat rx1_packets)" = "$before" ]
	ethtool -L "$NETDEV" combined 2
	[ "$(places)" = '64 0 64 1' ]
	for queue in 0 1; do
		ethtool -X "$NETDEV" start $queue equal 1
		[ "$(places)" = "128 $queue" ]
		other=rx$((1 - queue))_packets
		before=$(stat $other)
		own=$(stat rx${queue}_packets)
		works
		[ "$(stat $other)" = "$before" ]
		[ "$(stat rx${queue}_packets)" -ge $((own + 3)) ]
	done
	lab_fails ethtool -L "$NETDEV" combined 1
	ethtool -X "$NETDEV" default
	[ "$(places)" = '64 0 64 1' ]
	key=$(seq -s : 10 49)
	ethtool -X "$NETDEV" hkey "$key"
	ethtool -x "$NETDEV" | grep -q "^$key\$"
	works
	ip link set "$NETDEV" down
	ethtool -L "$NETDEV" combined 1
	ip link set "$NETDEV" up
	[ "$(channels)" = 1 ]
	lab_until 10 ping -q -c 1 -W 1 "$PEER_IP"
	# As it was for others.
	ethtool -L "$NETDEV" combined 2
	works
	note "all right"
}

"$@"
