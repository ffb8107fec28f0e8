#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Gives the interface more addresses than its GID table has entries, and removes them: more_addresses ROUNDS. After each round the
# table is as it was.
. /lab/lib.sh
set -eu

rounds=$1
gids=/sys/class/infiniband/$RDMA_DEV/ports/1/gids

# The entries that are in use, with their indices. Others can't be read.
in_use() { grep -H . "$gids"/* 2>/dev/null | grep -v '0000:0000:0000:0000:0000:0000:0000:0000$' || true; }
is_full() { [ "$(in_use | wc -l)" = "$size" ]; }
is_as_before() { [ "$(in_use)" = "$before" ]; }

before=$(in_use)
entries=("$gids"/*)
size=${#entries[@]}
more=$((size + 40))
for ((i = 0; i < more; i++)); do
	echo "10.$((100 + i / 250)).$((i % 250)).1/32 dev $NETDEV"
done >/tmp/more
sed 's/^/address add /' /tmp/more >/tmp/add
sed 's/^/address del /' /tmp/more >/tmp/del
echo "$size entries, $more addresses, at first: $before"
for ((round = 1; round <= rounds; round++)); do
	ip -batch /tmp/add
	# In some rounds the removal follows before the kernel has changed the table.
	[ $((round % 4)) -ne 1 ] || lab_until 60 is_full
	ip -batch /tmp/del
	if ! lab_until 60 is_as_before; then
		echo "round $round:"
		in_use
		dmesg | tail -n 20
		exit 1
	fi
	echo "round $round: $SECONDS s"
done
echo "all right"
