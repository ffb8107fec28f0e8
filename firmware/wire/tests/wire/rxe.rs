//! Packets of another implementation of RoCEv2, Linux' `rdma_rxe`, over IPv4 and IPv6.

use faultline_wire::{Ip, Opcode, Position, parse};

use crate::known::hex;
use crate::support::{build, oracle_icrc};

struct Captured {
    ip_version: u8,
    opcode: u8,
    frame: Vec<u8>,
}

fn captured() -> Vec<Captured> {
    include_str!("../rxe/packets.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut words = line.split_whitespace();
            let mut word = || words.next().unwrap();
            Captured {
                ip_version: word().parse().unwrap(),
                opcode: u8::from_str_radix(word(), 16).unwrap(),
                frame: hex(word()),
            }
        })
        .collect()
}

#[test]
fn every_kind_of_packet_is_there() {
    for version in [4, 6] {
        let mut opcodes: Vec<u8> = captured()
            .iter()
            .filter(|packet| packet.ip_version == version)
            .map(|packet| packet.opcode)
            .collect();
        opcodes.sort_unstable();
        let expected = [
            0x00, 0x01, 0x02, 0x04, 0x06, 0x07, 0x08, 0x0a, 0x0c, 0x0d, 0x0e, 0x0f, 0x11, 0x12,
            0x13, 0x14, 0x20, 0x21, 0x22, 0x64,
        ];
        assert_eq!(opcodes, expected, "IPv{version}");
    }
}

#[test]
fn they_are_read_and_their_checksums_agree() {
    for Captured {
        ip_version,
        opcode,
        frame,
    } in captured()
    {
        let packet = parse(&frame).unwrap();
        assert!(packet.icrc_ok, "IPv{ip_version} {opcode:#x}");
        assert_eq!(oracle_icrc(&frame), packet.icrc);
        let header = packet.header;
        assert_eq!(header.bth.opcode.to_u8(), opcode);
        assert_eq!(matches!(header.ip, Ip::V6(_)), ip_version == 6);
        assert_eq!(header.bth.pkey, 0xffff);
        // What capture.sh sends: messages of 600 (UC: 601) bytes in packets of 256, or short ones.
        let uc = u32::from(opcode & 0xe0 == 0x20);
        let len = match (header.bth.opcode.info().position, header.bth.opcode) {
            (Position::First | Position::Middle, _) => 256,
            (Position::Last, _) => 600 + uc - 512,
            (_, Opcode::RcSendOnly) => 37,
            (_, Opcode::UdSendOnly) => 102,
            (_, Opcode::RcWriteOnly) => 3,
            _ => 0,
        };
        assert_eq!(packet.payload.len() as u32, len, "{:?}", header.bth.opcode);
        if let Some(reth) = header.reth {
            let expected = if header.bth.opcode == Opcode::RcWriteOnly {
                3
            } else {
                600
            };
            assert_eq!(reth.len, expected);
        }
        if let Some(atomic) = header.atomic {
            assert_eq!(atomic.addr % 8, 0);
        }
        if let Some(deth) = header.deth {
            assert_eq!(deth.qkey, 0x1111_1111, "ibv_ud_pingpong's");
        }
    }
}

#[test]
fn they_are_written_byte_for_byte() {
    for Captured { frame, opcode, .. } in captured() {
        let packet = parse(&frame).unwrap();
        let ours = build(&packet.header, packet.payload);
        assert_eq!(ours, frame, "{opcode:#x}");
    }
}

/// The fields that routers change are masked: type of service, flow label, hop limit, UDP checksum, and the byte
/// of the BTH with the congestion bits.
#[test]
fn every_other_bit_counts() {
    for Captured {
        ip_version, frame, ..
    } in captured()
    {
        let ip = 14;
        let udp = ip + if ip_version == 4 { 20 } else { 40 };
        let masked: Vec<usize> = match ip_version {
            4 => vec![ip + 1, ip + 8, ip + 10, ip + 11],
            _ => vec![ip, ip + 1, ip + 2, ip + 3, ip + 7],
        };
        let masked = [masked, vec![udp + 6, udp + 7, udp + 12]].concat();
        for at in ip..frame.len() {
            for bit in 0..8 {
                let mut damaged = frame.clone();
                damaged[at] ^= 1 << bit;
                let Ok(packet) = parse(&damaged) else {
                    continue;
                };
                if !masked.contains(&at) {
                    assert!(!packet.icrc_ok, "byte {at} bit {bit}");
                }
            }
        }
    }
}
