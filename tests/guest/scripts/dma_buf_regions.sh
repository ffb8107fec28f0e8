#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# dma_buf: regions of buffers that others own, and that a module moves (tests/guest/kernel/moving_buffer.c).
. /lab/lib.sh
set -eu

trap 'rmmod moving_buffer' EXIT
insmod "/lib/modules/$(uname -r)/moving_buffer.ko"
dma_buf
