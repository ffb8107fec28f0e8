#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Renders all manual pages below a tree, and prints their number. A warning is an error: check-manual TREE
set -eu
find "$1" -path '*/man/man*' -name '*.gz' >/tmp/pages
while read -r page; do
	MANROFFSEQ='' MANWIDTH=80 LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" >/dev/null 2>/tmp/warnings
	if [ -s /tmp/warnings ]; then
		echo "$page:"
		cat /tmp/warnings
		exit 1
	fi
done </tmp/pages
echo "$(wc -l </tmp/pages) manual pages"
