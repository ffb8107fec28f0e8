#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds a libibverbs provider in /mnt/build. Puts the library into /mnt/out, and the name of its plugin into
# /mnt/out/plugin: build-provider NAME SOVERSION
set -eu
name=$1 soversion=$2
cd /mnt/build
# cmake must run again after a provider has been added to its list.
ninja -t targets all | grep -q "^lib/lib$name\\.so: " || cmake .
ninja "$name"
rm -rf /mnt/out
mkdir /mnt/out
cp -L "lib/lib$name.so.$soversion" /mnt/out/
cd lib
ls "lib$name"-rdmav*.so >/mnt/out/plugin
