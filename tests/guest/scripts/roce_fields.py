#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Shows how the RoCE packets that an interface receives differ in the fields that switches and hosts look at.

    roce_fields NETDEV FILE

It prints "watching" when it begins, and each combination of fields once when FILE exists and no packet comes.
VLAN and priority are those of the tag, as the kernel says (packet(7), PACKET_AUXDATA).
"""
import os
import socket
import struct
import sys

netdev, end = sys.argv[1:]
SOL_PACKET, PACKET_AUXDATA = 263, 8
PACKET_OUTGOING = 4
TP_STATUS_VLAN_VALID = 1 << 4
SO_RCVBUFFORCE = 33
ETH_P_ALL, ETH_P_IP, ETH_P_IPV6 = 3, 0x800, 0x86DD
ROCE_PORT = 4791

s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
s.bind((netdev, ETH_P_ALL))
s.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
s.settimeout(0.5)
seen = set()
print("watching", flush=True)
while True:
    try:
        packet, data, _, source = s.recvmsg(64, 64)
    except TimeoutError:
        if os.path.exists(end):
            break
        continue
    if source[2] == PACKET_OUTGOING:
        continue
    if source[1] == ETH_P_IP:
        traffic_class, protocol, label = packet[1], packet[9], None
        udp = packet[(packet[0] & 15) * 4 :]
    elif source[1] == ETH_P_IPV6:
        (first,) = struct.unpack(">I", packet[:4])
        traffic_class, protocol, label = first >> 20 & 0xFF, packet[6], first & 0xFFFFF
        udp = packet[40:]
    else:
        continue
    if protocol != socket.IPPROTO_UDP:
        continue
    sport, dport, _, checksum = struct.unpack(">HHHH", udp[:8])
    if dport != ROCE_PORT:
        continue
    fields = f"class {traffic_class}, UDP checksum {checksum}, port {sport:#x}"
    if label is not None:
        fields += f", flow label {label:#x}"
    status, *_, tag, _ = struct.unpack("=IIIHHHH", data[0][2][:20])
    if status & TP_STATUS_VLAN_VALID:
        fields += f", VLAN {tag & 0xFFF}, priority {tag >> 13}"
    seen.add(fields)
for fields in sorted(seen):
    print(fields)
