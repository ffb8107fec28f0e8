#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Prints everything about a module that the module index depends on: module-facts MODULE
set -eu
module=$1
for field in depends alias softdep name; do
	modinfo -F "$field" "$module"
done
# No match is no error: a module need not export symbols.
nm "$module" | grep -E ' (U|.) __(ksymtab|export)' || :
