#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sockets of SMC over RDMA (SMC-Rv2) between two guests. Some kernels of Debian have no SMC.
#
#	ulp_smc server|client
. /lab/lib.sh
set -eu

if ! modprobe -a smc smc_diag; then
	if modinfo -n smc >/dev/null 2>&1; then exit 1; fi
	# The client waits for a listening server.
	case $1 in
	server) nc -l 18720 >/dev/null ;;
	client) nc -N "$PEER_IP" 18720 </dev/null ;;
	esac
	echo "the kernel $(uname -r) has no SMC"
	echo "all right"
	exit 0
fi
# Version 2 is used between hosts that have the same enterprise ID.
smc_eid FAULTLINE
case $1 in
server) smc_pair ;;
client)
	lab_count_carried
	smc_pair "$PEER_IP" || { dmesg | tail -n 20; exit 1; }
	# Three connections carry 1 MiB in each direction.
	lab_has_carried 6
	rdma resource show qp | grep "comm \[smc\]" || { rdma resource show qp; exit 1; }
	;;
esac
echo "all right"
