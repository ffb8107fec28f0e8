#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Gives this host an enterprise ID for SMC version 2, as `smcr ueid add` does: smc_eid NAME."""

import socket
import struct
import sys

NETLINK_GENERIC = 16
REQUEST_WITH_ACK = 1 | 4
ERROR = 2
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
# include/uapi/linux/smc.h
ADD_UEID, EID_TABLE_ENTRY = 10, 1
LONGEST = 32


def attribute(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return struct.pack("HH", length, kind) + value + bytes(-length % 4)


def ask(netlink: socket.socket, family: int, command: int, body: bytes) -> list[tuple[int, bytes]]:
    """The messages up to the acknowledgement."""
    payload = struct.pack("BBH", command, 1, 0) + body
    header = struct.pack("IHHII", 16 + len(payload), family, REQUEST_WITH_ACK, 1, 0)
    netlink.send(header + payload)
    answers = []
    while True:
        data = netlink.recv(65536)
        while data:
            length, kind = struct.unpack_from("IH", data)
            message, data = data[16:length], data[(length + 3) & ~3 :]
            if kind != ERROR:
                answers.append((kind, message))
                continue
            (error,) = struct.unpack_from("i", message)
            if error:
                raise OSError(-error, f"the kernel refuses command {command}")
            return answers


def family_of(netlink: socket.socket, name: str) -> int:
    name_of = attribute(CTRL_ATTR_FAMILY_NAME, name.encode() + b"\0")
    ((_, message),) = ask(netlink, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, name_of)
    rest = message[4:]
    while rest:
        length, kind = struct.unpack_from("HH", rest)
        if kind == CTRL_ATTR_FAMILY_ID:
            return struct.unpack_from("H", rest, 4)[0]
        rest = rest[(length + 3) & ~3 :]
    raise LookupError(name)


def main() -> None:
    eid = sys.argv[1].upper().ljust(LONGEST).encode()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as netlink:
        netlink.bind((0, 0))
        family = family_of(netlink, "SMC_GEN_NETLINK")
        ask(netlink, family, ADD_UEID, attribute(EID_TABLE_ENTRY, eid + b"\0"))


if __name__ == "__main__":
    main()
