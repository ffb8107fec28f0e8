#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Watches the packets of an interface.

    watch_packets NETDEV FILE checksums|fields

It prints "watching" when it begins, and what it has seen when FILE exists and no packet comes:

checksums   counts of TCP packets by what the kernel says of their checksums (packet(7), PACKET_AUXDATA), as shell
            assignments
fields      each combination of what the IP and UDP headers and the VLAN tags of received RoCE packets say, once
"""
import os
import socket
import struct
import sys

netdev, end, what = sys.argv[1:]
with open(f"/sys/class/net/{netdev}/mtu") as file:
    mtu = int(file.read())

SOL_PACKET, PACKET_STATISTICS, PACKET_AUXDATA = 263, 6, 8
PACKET_OUTGOING = 4
TP_STATUS_CSUMNOTREADY, TP_STATUS_VLAN_VALID, TP_STATUS_CSUM_VALID = 1 << 3, 1 << 4, 1 << 7
SO_RCVBUFFORCE = 33
ETH_P_ALL, ETH_P_IP, ETH_P_IPV6 = 3, 0x800, 0x86DD
ROCE_PORT = 4791

s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
s.bind((netdev, ETH_P_ALL))
s.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
# Room for the whole stream.
s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
s.settimeout(0.5)


def packets():
    """EtherType, packet from its IP header on, whether it leaves, and struct tpacket_auxdata, until the end."""
    print("watching", flush=True)
    while True:
        try:
            packet, data, _, source = s.recvmsg(64, 64)
        except TimeoutError:
            if os.path.exists(end):
                return
            continue
        yield source[1], packet, source[2] == PACKET_OUTGOING, data[0][2][:20]


def checksums():
    counts = dict.fromkeys(["received", "valid", "sent", "partial", "long"], 0)
    for ethertype, packet, leaves, aux in packets():
        if ethertype != ETH_P_IP or packet[9] != socket.IPPROTO_TCP:
            continue
        status, length = struct.unpack("=II", aux[:8])
        if leaves:
            counts["sent"] += 1
            counts["partial"] += status & TP_STATUS_CSUMNOTREADY != 0
            counts["long"] += length > mtu * 3 // 2
        else:
            counts["received"] += 1
            counts["valid"] += status & TP_STATUS_CSUM_VALID != 0
    counts["missed"] = struct.unpack("=II", s.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
    for name, count in counts.items():
        print(f"{name}={count}")


def fields():
    seen = set()
    for ethertype, packet, leaves, aux in packets():
        label = ""
        if ethertype == ETH_P_IP:
            traffic_class, protocol = packet[1], packet[9]
            udp = packet[(packet[0] & 15) * 4 :]
        elif ethertype == ETH_P_IPV6:
            (first,) = struct.unpack(">I", packet[:4])
            traffic_class, protocol = first >> 20 & 0xFF, packet[6]
            label = f", flow label {first & 0xFFFFF:#x}"
            udp = packet[40:]
        else:
            continue
        if leaves or protocol != socket.IPPROTO_UDP:
            continue
        sport, dport, _, checksum = struct.unpack(">HHHH", udp[:8])
        if dport != ROCE_PORT:
            continue
        status, *_, tag, _ = struct.unpack("=IIIHHHH", aux)
        vlan = ""
        if status & TP_STATUS_VLAN_VALID:
            vlan = f", VLAN {tag & 0xFFF}, priority {tag >> 13}"
        seen.add(f"class {traffic_class}, UDP checksum {checksum}, port {sport:#x}{label}{vlan}")
    for line in sorted(seen):
        print(line)


{"checksums": checksums, "fields": fields}[what]()
