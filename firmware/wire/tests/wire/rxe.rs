//! Packets of another implementation of RoCEv2, Linux' `rdma_rxe`, over IPv4 and IPv6.

use faultline_wire::{Ip, Opcode, Position, WireError, parse};

use crate::known::hex;
use crate::support::{build, reference_icrc};

pub(crate) struct Captured {
    ip_version: u8,
    pub(crate) opcode: u8,
    pub(crate) frame: Vec<u8>,
}

pub(crate) fn captured() -> Vec<Captured> {
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
        assert_eq!(reference_icrc(&frame), packet.icrc);
        let header = packet.header;
        assert_eq!(header.bth.opcode.to_u8(), opcode);
        assert_eq!(matches!(header.ip, Ip::V6(_)), ip_version == 6);
        assert_eq!(header.bth.pkey, 0xffff);
        // capture.sh sends messages of 600 (UC: 601) bytes in packets of 256, or short ones.
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

fn put_ipv4_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let words = frame[14..34].chunks(2);
    let mut sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// A switch adds a VLAN tag, a router changes DSCP, ECN, hop limit and flow label: the iCRC stays right.
#[test]
fn routers_and_switches_may_change_masked_fields() {
    for Captured {
        ip_version, frame, ..
    } in captured()
    {
        let before = parse(&frame).unwrap();
        let mut changed = frame.clone();
        match ip_version {
            4 => {
                changed[15] = 0xbb;
                changed[22] = 3;
                put_ipv4_checksum(&mut changed);
            }
            _ => {
                changed[14..18].copy_from_slice(&0x6bb9_8765_u32.to_be_bytes());
                changed[21] = 3;
            }
        }
        // PCP 5, VLAN 0x123.
        changed.splice(12..12, [0x81, 0, 0xa1, 0x23]);
        let after = parse(&changed).unwrap();
        assert!(after.icrc_ok);
        assert_eq!(after.icrc, before.icrc);
        assert_eq!(after.payload, before.payload);
        assert_eq!(after.header.bth, before.header.bth);
        let vlan = after.header.ethernet.vlan.unwrap();
        assert_eq!((vlan.pcp, vlan.dei, vlan.vid), (5, false, 0x123));
        assert_eq!(after.header.ip.traffic_class(), 0xbb);
        assert_eq!(after.header.ip.hop_limit(), 3);
        if let Ip::V6(ip) = after.header.ip {
            assert_eq!(ip.flow_label, 0x9_8765);
        }
        // Written by this crate, it is the same packet.
        assert_eq!(build(&after.header, after.payload), changed);
    }
}

/// Checksums that a sender may write (RFC 768): none, or the right one.
#[test]
fn a_udp_checksum_is_right_or_absent() {
    for Captured {
        ip_version, frame, ..
    } in captured()
    {
        let udp = 14 + if ip_version == 4 { 20 } else { 40 };
        assert_eq!(frame[udp + 6..udp + 8], [0, 0]);
        let addresses = if ip_version == 4 { 26..34 } else { 22..54 };
        let mut pseudo = [&frame[addresses], &frame[udp..]].concat();
        pseudo.extend([0, 17]);
        pseudo.extend(((frame.len() - udp) as u16).to_be_bytes());
        let words = pseudo.chunks(2);
        let mut sum: u32 = words
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let right = match !sum as u16 {
            0 => 0xffff,
            sum => sum,
        };
        let with = |checksum: u16| {
            let mut frame = frame.clone();
            frame[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
            parse(&frame).map(|packet| packet.icrc_ok)
        };
        assert_eq!(with(right), Ok(true));
        for wrong in [right ^ 1, right ^ 0x8000] {
            assert_eq!(with(wrong), Err(WireError::BadUdpChecksum));
        }
    }
}
