#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the Debian packages of the tree /mnt/source, and puts them into /mnt.
set -eu
cd /mnt/source
# -d: nothing is compiled, so build-essential need not be there.
# Packages of debug information would be larger than all others together.
DEB_BUILD_OPTIONS=noautodbgsym dpkg-buildpackage -b -d -uc -us
