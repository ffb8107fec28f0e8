#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The packaged service gets a client, its server is killed and started anew: the journal says what happened, to whom, and how
# long it took.
. /lab/lib.sh
set -eu

SOCKET=/run/faultline/nic1.sock
since=$(date '+%Y-%m-%d %H:%M:%S')
# Of the server behind the supervisor.
server() { pgrep -P "$(systemctl show -P MainPID faultline)"; }
journal() { journalctl -u faultline -o cat --no-pager --since "$since"; }
# COUNT lines of the journal have this text.
tells() { [ "$(journal | grep -cF "$2")" -ge "$1" ]; }

# The first message of vfio-user, VERSION; then nothing until the end.
python3 -c '
import socket, struct, sys, time
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(struct.pack("<HHIII", 1, 1, 20, 0, 0) + bytes(4))
assert client.recv(16), "the connection has ended"
time.sleep(300)
' "$SOCKET" &
client=$!
trap 'kill $client' EXIT
lab_until 20 tells 1 'vfio-user client connected'
kill -9 "$(server)"
lab_until 20 tells 1 "a new server has the client's state"
systemctl reload faultline
lab_until 20 tells 2 "a new server has the client's state"

# One line after the other, with the name of the NIC and the time without a server.
journal >/run/journal
awk '
	BEGIN {
		count = split("vfio-user client connected|\
the server has ended (signal: 9 (SIGKILL)): starting it again|\
a new server has the client.s state; its device was reset.*away=[0-9.]+m?s|\
SIGHUP: starting the server anew|\
a new server has the client.s state; its device was reset.*away=[0-9.]+m?s", wanted, "|")
		for (i in wanted)
			gsub(/[()]/, "[&]", wanted[i])
		next_one = 1
	}
	next_one <= count && $0 ~ wanted[next_one] {
		if (/client/ && !/nic1/)
			exit 1
		next_one++
	}
	END { exit next_one <= count }
' /run/journal || { cat /run/journal; exit 1; }
echo PASS
