#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds and runs the test of a libibverbs provider in /mnt/build: test-provider NAME
set -eu
test=$1_provider_test
cd /mnt/build
# cmake must run again after the test has been added.
ninja -t targets all | grep -q "^$test:" || cmake .
ninja "$test"
"bin/$test"
