#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds programs of fabtests, which Debian has as source only, from the source package of the libfabric that guests have, in a guest
# root: build-fabtests PROGRAM… with the folder of each program. /mnt has fetch-source. Fills /mnt/out. What it installs in the root
# should be lost at its end.
set -eu
apt-get update
apt-get install -y --no-install-recommends autoconf automake libtool libfabric-dev
version=$(dpkg-query -W -f '${source:Version}' libfabric-dev)
sh -eu /mnt/fetch-source "libfabric=$version" /mnt
cd /mnt/source/fabtests
autoreconf -i
./configure --disable-efa --disable-lpp
make -j"$(nproc)" "$@"
mkdir /mnt/out
for program; do
	./libtool --mode=install install -s -m 755 "$program" /mnt/out/
done
rm -r /mnt/source
