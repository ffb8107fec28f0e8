#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Announces an IPv4 address of this guest by gratuitous ARP, as keepalived does: announce_address NETDEV ADDRESS"""
import socket
import struct
import sys

netdev, address = sys.argv[1:]
ETH_P_ARP = 0x0806
BROADCAST = b"\xff" * 6

with open(f"/sys/class/net/{netdev}/address") as file:
    mac = bytes.fromhex(file.read().strip().replace(":", ""))
ip = socket.inet_aton(address)
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((netdev, 0))
# A request and a reply: some hosts take only one of them (RFC 5227, section 3).
for operation in 1, 2:
    arp = struct.pack(">HHBBH", 1, 0x0800, 6, 4, operation) + mac + ip + BROADCAST + ip
    s.send(BROADCAST + mac + struct.pack(">H", ETH_P_ARP) + arp)
