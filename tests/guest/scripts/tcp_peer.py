#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""rping's messages over a TCP socket: the other end of an iWARP adapter whose TCP is that of Linux.

    tcp_peer client [NETEM…]	connects to rping of the other guest
    tcp_peer server [NETEM…]	waits for it

NETEM are options of netem for the frames that this guest sends and receives. At the end `ss` must show no anomaly of
the connection. Formats: RFC 5044 (MPA) with the setup of RFC 6581, RFC 5041 (DDP), RFC 5040 (RDMAP).
"""

import os
import re
import socket
import struct
import subprocess
import sys

PORT = 7174
COUNT = 300
SIZE = 16000
DEPTH = 8
# Flags of a setup frame, and of the depths in its private data.
CRC, REJECT, ENHANCED = 0x40, 0x20, 0x10
PEER_TO_PEER, RTR_WRITE = 0x8000, 0x8000
# Types of messages, and queues of untagged ones.
WRITE, READ_REQUEST, READ_RESPONSE, SEND, TERMINATE = 0, 1, 2, 3, 7
SENDS, READS = 0, 1
# The buffers of this end.
SOURCE, SINK = (0x101, 0x7000_0000_0000), (0x202, 0x7100_0000_0000)


def crc_table() -> list[int]:
    table = []
    for octet in range(256):
        for _ in range(8):
            octet = octet >> 1 ^ (0x82F63B78 if octet & 1 else 0)
        table.append(octet)
    return table


TABLE = crc_table()


def crc32c(octets: bytes) -> int:
    crc = 0xFFFF_FFFF
    for octet in octets:
        crc = crc >> 8 ^ TABLE[(crc ^ octet) & 0xFF]
    return crc ^ 0xFFFF_FFFF


def fail(text: str) -> None:
    sys.exit(f"tcp_peer: {text}")


def want(condition: bool, text: str) -> None:
    if not condition:
        fail(text)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Stream:
    """A connection: FPDUs, and the messages in them."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # An FPDU fits into a segment: header, ULPDU, padding and CRC.
        self.room = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) - 2 - 3 - 4
        self.sent = {SENDS: 0, READS: 0}
        self.arrived = {SENDS: 0, READS: 0}
        self.memory = {stag: bytearray(SIZE) for stag, _ in (SOURCE, SINK)}
        self.base = dict((SOURCE, SINK))

    def take(self, count: int) -> bytes:
        octets = bytearray()
        while len(octets) < count:
            more = self.sock.recv(count - len(octets))
            want(bool(more), f"the stream ends with {len(octets)} octets of {count}")
            octets += more
        return bytes(octets)

    # --- setup ---

    def send_setup(self, key: bytes) -> None:
        depths = struct.pack(">HH", PEER_TO_PEER | DEPTH, RTR_WRITE | DEPTH)
        self.sock.sendall(key + struct.pack(">BBH", CRC | ENHANCED, 2, len(depths)) + depths)

    def take_setup(self, key: bytes) -> None:
        want(self.take(16) == key, "a wrong key")
        flags, revision, length = struct.unpack(">BBH", self.take(4))
        private = self.take(length)
        want(flags == CRC | ENHANCED and revision == 2, f"flags {flags:#x}, revision {revision}")
        ird, ord_ = struct.unpack(">HH", private[:4])
        want(bool(ird & PEER_TO_PEER) and bool(ord_ & RTR_WRITE), f"no RTR: {private[:4].hex()}")

    # --- FPDUs ---

    def send_fpdu(self, ulpdu: bytes) -> None:
        octets = struct.pack(">H", len(ulpdu)) + ulpdu
        octets += bytes(-len(octets) % 4)
        self.sock.sendall(octets + struct.pack("<I", crc32c(octets)))

    def take_fpdu(self) -> bytes:
        (length,) = struct.unpack(">H", header := self.take(2))
        rest = self.take(length + -(length + 2) % 4)
        (crc,) = struct.unpack("<I", self.take(4))
        want(crc == crc32c(header + rest), "a wrong CRC")
        return rest[:length]

    # --- messages ---

    def send_untagged(self, kind: int, queue: int, payload: bytes) -> None:
        self.sent[queue] += 1
        header = struct.pack(">BBIIII", 0x41, 0x40 | kind, 0, queue, self.sent[queue], 0)
        self.send_fpdu(header + payload)

    def send_tagged(self, kind: int, stag: int, offset: int, data: bytes) -> None:
        step = self.room - 14
        for at in range(0, len(data) or 1, step):
            last = 0x40 if at + step >= len(data) else 0
            header = struct.pack(">BBIQ", 0x81 | last, 0x40 | kind, stag, offset + at)
            self.send_fpdu(header + data[at : at + step])

    def take_message(self) -> tuple[int, bytes]:
        """Places tagged data and answers READs; returns the first other message, or the end of a READ's response."""
        payload = bytearray()
        while True:
            ulpdu = self.take_fpdu()
            control, rdmap = ulpdu[0], ulpdu[1]
            want(control & 3 == 1 and rdmap >> 6 == 1, f"versions {control:#x}, {rdmap:#x}")
            kind, last = rdmap & 0xF, bool(control & 0x40)
            if control & 0x80:
                stag, offset = struct.unpack(">IQ", ulpdu[2:14])
                self.place(stag, offset, ulpdu[14:])
                if kind == READ_RESPONSE and last:
                    return kind, b""
                continue
            queue, msn, offset = struct.unpack(">III", ulpdu[6:18])
            want(kind != TERMINATE, f"a Terminate message: {ulpdu[18:].hex()}")
            want(offset == len(payload), f"message offset {offset}, not {len(payload)}")
            payload += ulpdu[18:]
            if not last:
                continue
            self.arrived[queue] += 1
            want(msn == self.arrived[queue], f"MSN {msn}, not {self.arrived[queue]}")
            if kind != READ_REQUEST:
                return kind, bytes(payload)
            sink, sink_at, length, source, at = struct.unpack(">IQIIQ", payload)
            start = at - self.base[source]
            self.send_tagged(READ_RESPONSE, sink, sink_at, bytes(self.memory[source][start : start + length]))
            payload.clear()

    def place(self, stag: int, offset: int, data: bytes) -> None:
        # A WRITE without data (RTR) may name anything.
        if data:
            start = offset - self.base[stag]
            want(0 <= start <= SIZE - len(data), f"offset {offset:#x} of STag {stag:#x}")
            self.memory[stag][start : start + len(data)] = data

    def await_send(self) -> bytes:
        kind, payload = self.take_message()
        want(kind == SEND, f"message {kind}, not a SEND")
        return payload

    def read(self, source: tuple[int, int], length: int) -> None:
        stag, base = SINK
        self.send_untagged(READ_REQUEST, READS, struct.pack(">IQIIQ", stag, base, length, *source))
        kind, _ = self.take_message()
        want(kind == READ_RESPONSE, f"message {kind}, not a response")


def advert(buffer: tuple[int, int]) -> bytes:
    stag, base = buffer
    return struct.pack(">QII", base, stag, SIZE)


def client(peer: Stream) -> None:
    peer.send_setup(b"MPA ID Req Frame")
    peer.take_setup(b"MPA ID Rep Frame")
    peer.send_tagged(WRITE, 0, 0, b"")
    for number in range(COUNT):
        data = f"rdma-ping-{number}: ".encode() + bytes((number + at) % 94 + 33 for at in range(SIZE))
        peer.memory[SOURCE[0]][:] = data[: SIZE - 1] + b"\0"
        peer.send_untagged(SEND, SENDS, advert(SOURCE))
        peer.await_send()
        peer.send_untagged(SEND, SENDS, advert(SINK))
        peer.await_send()
        same = peer.memory[SOURCE[0]] == peer.memory[SINK[0]]
        want(same, f"other data than that of message {number} is written")


def server(peer: Stream) -> None:
    peer.take_setup(b"MPA ID Req Frame")
    peer.send_setup(b"MPA ID Rep Frame")
    for _ in range(COUNT):
        base, stag, size = struct.unpack(">QII", peer.await_send())
        peer.read((stag, base), size)
        peer.send_untagged(SEND, SENDS, advert(SINK))
        base, stag, size = struct.unpack(">QII", peer.await_send())
        peer.send_tagged(WRITE, stag, base, bytes(peer.memory[SINK[0]][:size]))
        peer.send_untagged(SEND, SENDS, advert(SINK))


def judge(sock: socket.socket, impaired: bool) -> None:
    """What Linux's TCP knows of the connection."""
    local, remote = sock.getsockname()[1], sock.getpeername()[1]
    text = run("ss", "-tinHO", "sport", f"= :{local}", "and", "dport", f"= :{remote}")
    print(text)
    # tcpi_options of struct tcp_info: time stamps, SACK, window scaling. Not every ss shows them.
    options = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[5]
    want(options & 7 == 7, f"options {options:#x}: time stamps, SACK or window scaling are not in use")
    fields = dict(re.findall(r"(\w+):([\d.]+)", text))
    fields["retransmitted"] = (re.findall(r"retrans:\d+/(\d+)", text) or ["0"])[0]

    def count(name: str) -> int:
        return int(float(fields.get(name, "0")))

    want(count("bytes_received") >= COUNT * SIZE, "less was received than the peer has sent")
    want(count("backoff") == 0, "the last timeout was repeated")
    if impaired:
        want(count("retransmitted") > 0 or count("reord_seen") > 0, "netem has lost and reordered nothing")
    else:
        for name in ("lost", "sacked", "dsack_dups", "reord_seen", "rcv_ooopack"):
            want(count(name) == 0, f"{name} is {count(name)} on a link that loses nothing")
        # A guest that does not run for a while causes a probe (RFC 8985 section 7).
        sent, again = count("data_segs_out"), count("retransmitted")
        want(100 * again <= sent, f"{again} of {sent} segments were sent again on a link that loses nothing")


def impair(netdev: str, netem: list[str]) -> None:
    """Frames that arrive pass another interface first, since netem is for those that leave one."""
    run("ip", "link", "add", "arriving", "type", "ifb")
    run("ip", "link", "set", "arriving", "up")
    run("tc", "qdisc", "add", "dev", netdev, "ingress")
    redirect = ["action", "mirred", "egress", "redirect", "dev", "arriving"]
    run("tc", "filter", "add", "dev", netdev, "parent", "ffff:", "matchall", *redirect)
    for interface in (netdev, "arriving"):
        run("tc", "qdisc", "replace", "dev", interface, "root", "netem", *netem)


def repair(netdev: str) -> None:
    run("tc", "qdisc", "delete", "dev", netdev, "root")
    run("tc", "qdisc", "delete", "dev", netdev, "ingress")
    run("ip", "link", "delete", "arriving")


def main() -> None:
    role, netem = sys.argv[1], sys.argv[2:]
    netdev = os.environ["NETDEV"]
    if netem:
        impair(netdev, netem)
    try:
        if role == "client":
            sock = socket.create_connection((os.environ["PEER_IP"], PORT))
        else:
            with socket.create_server((os.environ["MY_IP"], PORT)) as listener:
                sock, _ = listener.accept()
        peer = Stream(sock)
        (client if role == "client" else server)(peer)
        judge(sock, bool(netem))
        if role == "server":
            # rping is the one that ends.
            want(sock.recv(1) == b"", "octets after the last message")
        sock.close()
    finally:
        if netem:
            repair(netdev)
    print("all right")


main()
