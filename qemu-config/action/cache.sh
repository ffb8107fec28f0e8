#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The caches of action.yml. `cache.sh keys` prints the parts of their keys as outputs of a step. `cache.sh date HIT` sets the times of the
# sources for cargo; HIT is true if the programs that were restored are of the same sources.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The files that decide the programs and the guests. The action may be downloaded without .git, so these are no tracked ones.
sources() {
	find .cargo Cargo.lock Cargo.toml device firmware guest-driver qemu-config rust-toolchain.toml tests/guest \
		-path qemu-config/action -prune -o -type f -print0 | LC_ALL=C sort -z
}

# The beginning of the digest of the standard input: a key must have no commas, as a list of packages has.
digest() {
	sha256sum | cut -c 1-16
}

case $1 in
keys)
	sources=$(sources | xargs -0 sha256sum | digest)
	compiler=$(rustc --version | cut -d ' ' -f 2)
	packages=$(digest <<<"$FAULTLINE_PACKAGES")
	echo "target=$PWD/target"
	echo "sources=$sources"
	echo "programs=faultline-programs-$RUNNER_ARCH-$compiler-"
	# A root with Debian packages is made once. Each week it is made anew, with the updates.
	echo "guests=faultline-guests-$RUNNER_ARCH-$FAULTLINE_KERNEL-$packages-$(date -u +%G-W%V)-"
	;;
date)
	# cargo only compares the times of sources with those of programs. A download has the times of the commit, which may be older than a
	# program of the commit before; a checkout has its own time, which is newer than each program.
	case $2 in
	true) time=2000-01-01 ;;
	*) time=now ;;
	esac
	sources | xargs -0 touch -d "$time"
	;;
*)
	echo "cache.sh: unknown command: $1" >&2
	exit 2
	;;
esac
