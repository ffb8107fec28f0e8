#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# NFS 4.2 over RDMA between two guests.
#
#	ulp_nfs server	exports a file system in the server's memory from now on; returns
#	ulp_nfs client [files]	copies files there, verifies them from an empty cache, and builds and tests bzip2 on it; with "files"
#			fewer files, and no bzip2
. /lab/lib.sh
set -eu

EXPORT=/srv/nfs

server() {
	! mountpoint -q "$EXPORT" || return 0
	modprobe -a nfsd rpcrdma
	mkdir -p "$EXPORT"
	mount -t tmpfs -o size=256m none "$EXPORT"
	mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
	mkdir -p /var/lib/nfs/nfsdcld /run
	exportfs -o rw,no_root_squash,fsid=0,insecure,no_subtree_check "*:$EXPORT"
	rpc.mountd --no-nfs-version 3
	# The grace time is for clients of an earlier server, of which there are none. Not every kernel can end it on request.
	echo 10 >/proc/fs/nfsd/nfsv4leasetime
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	rpc.nfsd --no-nfs-version 3 --nfs-version 4 --rdma=20049 --no-udp 4
	echo Y 2>/dev/null >/proc/fs/nfsd/v4_end_grace || true
	grep -q rdma /proc/fs/nfsd/portlist
}

attach() {
	mount -t nfs -o vers=4.2,proto=rdma,port=20049,sec=sys "$PEER_IP:/" /mnt/nfs
}

client() {
	modprobe -a nfs rpcrdma
	mkdir -p /mnt/nfs
	lab_until 60 attach || { attach; exit 1; }
	grep " /mnt/nfs .*proto=rdma" /proc/mounts >/dev/null

	# Some hundred files, or some dozen, and a long one of them and all around them.
	tree=/usr/include/linux
	[ "${1-}" != files ] || tree=/usr/include/rdma
	cp -r "$tree" /mnt/nfs/tree
	tar -C "$tree/.." -cf /tmp/tree.tar .
	cp /tmp/tree.tar /mnt/nfs/tree.tar
	umount /mnt/nfs
	attach
	(cd "$tree" && find . -type f -exec sha256sum {} +) >/tmp/sums
	(cd /mnt/nfs/tree && sha256sum --quiet --check /tmp/sums)
	# proves: alloc_mr, map_mr_sg, IB_MR_TYPE_MEM_REG
	cmp /tmp/tree.tar /mnt/nfs/tree.tar
	echo "$(wc -l </tmp/sums) files verified after $(cut -d. -f1 /proc/uptime) s"
	[ "${1-}" = files ] || build
	rm -r /mnt/nfs/tree /mnt/nfs/tree.tar
	umount /mnt/nfs
	echo "all right"
}

build() {
	# Its default target ends with a comparison of what it makes of its samples. The file system is under test, not the
	# compiler, which under TCG takes a minute longer for its own options.
	cp -r /usr/src/bzip2/source /mnt/nfs/build
	make -C /mnt/nfs/build CFLAGS="-O0 -D_FILE_OFFSET_BITS=64" >/tmp/make.log 2>&1 || { tail -20 /tmp/make.log; exit 1; }
	grep -q "^cmp sample3.tst sample3.ref" /tmp/make.log
	grep -q "If you got this far and the 'cmp's didn't complain" /tmp/make.log
	# The same once more, of what the program left on the server.
	umount /mnt/nfs
	attach
	/mnt/nfs/build/bzip2 -dc </mnt/nfs/build/sample1.rb2 | cmp - /mnt/nfs/build/sample1.ref
	echo "bzip2 is built and passes its test"
	rm -r /mnt/nfs/build
}

"$@"
