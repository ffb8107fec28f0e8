#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the server of valkey with RDMA, and its test client, from Debian's source package, in a guest root. /mnt has fetch-source.
# Fills /mnt/out.
set -eu
sh -eu /mnt/fetch-source valkey /mnt
cd /mnt/source
make -C src -j"$(nproc)" BUILD_RDMA=yes MALLOC=libc USE_SYSTEMD=no OPTIMIZATION=-O2 valkey-server

# Changes the test client: change FROM TO, both as of sed.
change() {
	grep -q "$1" tests/rdma/rdma-test.c || { echo "valkey's test client has no \"$1\""; exit 1; }
	sed -i "s/$1/$2/" tests/rdma/rdma-test.c
}

# A connection, a request and a response may take a second, an address and a route 100 ms. On a busy machine they take longer.
change 'ConnectRdma(host, port, 1000)' 'ConnectRdma(host, port, 60000)'
change 'long timed = 1000;' 'long timed = 60000;'
change 'saddr, 100)' 'saddr, 20000)'
change 'timeout > 100)' 'timeout > 20000)'
change 'timeout = 100;' 'timeout = 20000;'

mkdir /mnt/out
make -C tests/rdma
cp tests/rdma/rdma-test /mnt/out/valkey-test
# The length of values is in the source.
change 'keysize = 1024 + 1;' 'keysize = 102400 + 1;'
change '1024\\r' '102400\\r'
make -C tests/rdma -B
cp tests/rdma/rdma-test /mnt/out/valkey-test-100k
cp src/valkey-server /mnt/out/
strip /mnt/out/*
rm -r /mnt/source
