#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# rcopy between two guests: a file, and its checksum after it.
#
#	rcopy_file server	verifies the file; rcopy does not say when a file is complete, nor does it end: the client knows
#	rcopy_file client	copies it
. /lab/lib.sh
set -eu
cd /tmp

server() {
	local pid
	rcopy &
	pid=$!
	lab barrier rcopy
	kill $pid
	sha256sum --check copied.sum
}

client() {
	head -c 20000003 /dev/urandom >copied
	sha256sum copied >copied.sum
	rcopy copied "$PEER_IP:/tmp/copied"
	rcopy copied.sum "$PEER_IP:/tmp/copied.sum"
	lab barrier rcopy
}

"$@"
