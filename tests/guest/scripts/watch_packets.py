#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Counts the TCP packets of an interface by what the kernel says of their checksums (packet(7), PACKET_AUXDATA).

    watch_packets NETDEV FILE

It prints "watching" when it begins, and the counts as shell assignments when FILE exists and no packet comes.
"""
import os
import socket
import struct
import sys

netdev, end = sys.argv[1:]
with open(f"/sys/class/net/{netdev}/mtu") as file:
    mtu = int(file.read())

SOL_PACKET, PACKET_STATISTICS, PACKET_AUXDATA = 263, 6, 8
PACKET_OUTGOING = 4
TP_STATUS_CSUMNOTREADY, TP_STATUS_CSUM_VALID = 1 << 3, 1 << 7
SO_RCVBUFFORCE = 33
ETH_P_ALL, ETH_P_IP = 3, 0x800

s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
s.bind((netdev, ETH_P_ALL))
s.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
# Room for the whole stream.
s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
s.settimeout(0.5)
counts = dict.fromkeys(["received", "valid", "sent", "partial", "long"], 0)
print("watching", flush=True)
while True:
    try:
        packet, data, _, source = s.recvmsg(64, 64)
    except TimeoutError:
        if os.path.exists(end):
            break
        continue
    if source[1] != ETH_P_IP or packet[9] != socket.IPPROTO_TCP:
        continue
    status, length = struct.unpack("=II", data[0][2][:8])
    if source[2] == PACKET_OUTGOING:
        counts["sent"] += 1
        counts["partial"] += status & TP_STATUS_CSUMNOTREADY != 0
        counts["long"] += length > mtu * 3 // 2
    else:
        counts["received"] += 1
        counts["valid"] += status & TP_STATUS_CSUM_VALID != 0
counts["missed"] = struct.unpack("=II", s.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
for name, count in counts.items():
    print(f"{name}={count}")
