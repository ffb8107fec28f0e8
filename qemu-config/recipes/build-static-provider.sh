#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the static library of a libibverbs provider that is built in /mnt/build, for the installed libibverbs.a, and puts it into
# /mnt/out: build-static-provider NAME
#
# A static library of rdma-core has a prefix with the release before all names that its version script does not export. The library here
# gets the same names: those that libibverbs.a defines with the prefix, and its own private ones.
set -eu
name=$1
multiarch=$(gcc -print-multiarch)
libibverbs=/usr/lib/$multiarch/libibverbs.a
cd /mnt/build
ninja "$name-static"
objects=/mnt/build/static-$name
rm -rf "$objects"
mkdir "$objects"
cd "$objects"
ar x "../providers/$name/lib$name-static.a"

nm -g --defined-only "$libibverbs" | awk 'NF == 3 { print $3 }' | sort -u >verbs
prefix=$(sed -n 's/verbs_set_ops$//p' verbs)
test -n "$prefix"
sed -n "s/^$prefix//p" verbs | sort >private
nm -g --undefined-only ./*.o | awk 'NF == 2 { print $2 }' | sort -u >undefined
nm -g --defined-only ./*.o | awk 'NF == 3 { print $3 }' | sort -u >defined
{
	nm -D --defined-only "../lib/lib$name.so" | awk 'NF == 3 { sub("@.*", "", $3); print $3 }'
	echo "verbs_provider_$name"
} | sort -u >public
{
	comm -12 undefined private
	comm -23 defined public
} | sort -u | awk -v prefix="$prefix" '{ print $1, prefix $1 }' >renamed
for object in *.o; do
	objcopy --redefine-syms=renamed "$object"
done
ar qsc "/mnt/out/lib$name.a" ./*.o
