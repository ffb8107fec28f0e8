#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Fetches and unpacks the upstream tarball of a source package (NAME or NAME=VERSION) into PARENT/source, in a guest
# root: fetch-source PACKAGE PARENT
#
# Fetches the tarball alone. Some mirrors lack the .dsc, so that a plain `apt-get source` fails, although they have the
# tarball; the checksum is from the signed index in both cases.
set -eu
package=$1 parent=$2
mkdir -p "$parent"
cd "$parent"

# Prints the line of the tarball: its quoted address, name, size and checksum.
find_tarball() {
	apt-get source --print-uris --download-only "$package" | grep '\.orig\.tar\.[a-z0-9]* '
}

line=$(find_tarball) || { apt-get update && line=$(find_tarball); }
uri=$(echo "$line" | sed "s/^'\([^']*\)'.*/\1/")
name=$(echo "$line" | awk '{ print $2 }')
sum=$(echo "$line" | awk '{ print $4 }')
/usr/lib/apt/apt-helper download-file "$uri" "$PWD/$name" "$sum"
rm -rf source.partial
mkdir source.partial
tar -x --strip-components=1 --no-same-owner -C source.partial -f "$name"
rm -rf source
mv source.partial source
