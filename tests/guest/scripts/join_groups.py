#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Joins COUNT multicast groups on an interface, prints "joined", and stays: join_groups NETDEV COUNT"""
import socket
import struct
import sys
import time

netdev, count = sys.argv[1], int(sys.argv[2])
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
interface = struct.pack("@I", socket.if_nametoindex(netdev))
for n in range(count):
    group = socket.inet_pton(socket.AF_INET6, f"ff05::7:{n:x}")
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + interface)
print("joined", flush=True)
time.sleep(300)
