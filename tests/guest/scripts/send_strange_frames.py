#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sends TCP packets with offload requests (packet(7), PACKET_VNET_HDR) that no device can serve.

    send_strange_frames NETDEV

Each kind five times; it prints for each frame whether the kernel has taken it.
"""
import socket
import struct
import sys

netdev = sys.argv[1]
SOL_PACKET, PACKET_VNET_HDR = 263, 15
# struct virtio_net_hdr
F_NEEDS_CSUM, GSO_NONE, GSO_TCPV4 = 1, 0, 1
MORE_FRAGMENTS = 0x2000

s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)
s.bind((netdev, 0))
s.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
with open(f"/sys/class/net/{netdev}/address") as file:
    mac = bytes.fromhex(file.read().strip().replace(":", ""))


def send(what, gso, header, size, start, offset, total, payload, fragment=0):
    """A frame whose IPv4 header says TOTAL; HEADER to OFFSET are those of the offload request."""
    addresses = bytes([10, 99, 9, 1]), bytes([10, 99, 9, 2])
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, total, 1, fragment, 64, 6, 0, *addresses)
    tcp = struct.pack(">HHIIBBHHH", 7, 7, 0, 0, 0x50, 16, 1000, 0, 0)
    frame = bytes([2, 0, 0, 0, 9, 9]) + mac + bytes([8, 0]) + ip + tcp + bytes(payload)
    request = struct.pack("=BBHHHH", F_NEEDS_CSUM, gso, header, size, start, offset)
    try:
        s.send(request + frame)
        print(what, "sent", flush=True)
    except OSError as error:
        print(what, error, flush=True)


for _ in range(5):
    send("a good packet to segment", GSO_TCPV4, 54, 1000, 34, 16, 8040, 8000)
    send("segments longer than the MTU", GSO_TCPV4, 54, 3000, 34, 16, 8040, 8000)
    send("one segment longer than the MTU", GSO_TCPV4, 54, 60000, 34, 16, 8040, 8000)
    send("a packet of no length", GSO_TCPV4, 54, 1000, 34, 16, 0, 8000)
    send("a fragment to segment", GSO_TCPV4, 54, 1000, 34, 16, 8040, 8000, MORE_FRAGMENTS)
    send("a sum over the addresses", GSO_NONE, 0, 0, 0, 16, 140, 100)
    send("a sum at the end", GSO_NONE, 0, 0, 152, 0, 140, 100)
    send("a sum over no TCP", GSO_NONE, 0, 0, 60, 4, 140, 100)
