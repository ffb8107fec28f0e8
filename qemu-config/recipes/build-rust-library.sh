#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the test programs of a Rust library in a guest root: build-rust-library LIBRARY COMMAND…
# Each COMMAND is one of cargo: its words, among which tests may have wildcards. /mnt has the tool chain in rust, libclang.so, and the
# library with what it depends on in LIBRARY and LIBRARY/vendor. Fills LIBRARY/out.
set -euf
library=/mnt/$1
shift
export PATH="/mnt/rust/bin:$PATH" CARGO_HOME=/mnt/cargo
# The headers of the compiler are not in libclang.so.
BINDGEN_EXTRA_CLANG_ARGS="-I$(gcc -print-file-name=include)"
export BINDGEN_EXTRA_CLANG_ARGS LIBCLANG_PATH=/mnt
# A newer compiler warns of more than the authors know of, and some warnings are errors. Guests get small programs: each has the library in it.
export RUSTFLAGS='--cap-lints allow'
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=symbols CARGO_PROFILE_DEV_OPT_LEVEL=s
# rustdoc keeps the programs of a documentation's examples only if unstable options are allowed.
export RUSTC_BOOTSTRAP=1 RUSTDOCFLAGS='-Z unstable-options --persist-doctests /mnt/examples --no-run'

mkdir -p $CARGO_HOME
cat >$CARGO_HOME/config.toml <<END
[source.crates-io]
replace-with = "vendored"
[source.vendored]
directory = "$library/vendor"
END
cd "$library"
mkdir out
for command; do
	# shellcheck disable=SC2086 # words
	cargo $command --quiet --locked --offline --target-dir /mnt/target
	# Libraries have a suffix, and so have lists of files.
	find /mnt/target/debug/deps -type f -executable ! -name '*.*' | while read -r program; do
		# Without cargo's hash.
		mv "$program" "out/$(basename "${program%-*}")"
	done
done
# Cargo links these under their names without a hash.
if [ -d /mnt/target/debug/examples ]; then
	find /mnt/target/debug/examples -type f -executable ! -name '*[-.]*' -exec mv -t out {} +
fi
if [ -d /mnt/examples ]; then
	mkdir out/documentation
	find /mnt/examples -name rust_out | while read -r program; do
		# The folder's name has the file and the line.
		strip -o "out/documentation/$(basename "$(dirname "$program")")" "$program"
	done
fi
rm -rf /mnt/target /mnt/examples
