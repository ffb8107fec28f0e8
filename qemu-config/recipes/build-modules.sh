#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the kernel modules below a folder of /mnt in a guest root: build-modules RELEASE FOLDER VARIABLE…
# The variables are for make.
set -eu
release=$1 folder=$2
shift 2
# `modules` alone: combined with `clean` in one call, make may run them in either order.
make -C "/usr/src/linux-headers-$release" "M=/mnt/$folder" -j"$(nproc)" "$@" modules
# As in a distribution's packages: all debug information would be copied at each boot.
strip --strip-debug "/mnt/$folder"/*.ko
