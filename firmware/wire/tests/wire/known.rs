//! Packets that others made, byte for byte.

use faultline_wire::{
    Aeth, Bth, CNP_PAYLOAD_LEN, Gid, Headers, Ip, MacAddr, Opcode, Psn, Syndrome, WireError,
    icrc::icrc, parse, seal,
};

use crate::support::{build, reference_icrc};

pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] * 16 + pair[1]) as u8)
        .collect()
}

/// A CNP captured on a ConnectX-4 Lx. From the tests of Scapy, `test/contrib/roce.uts`,
/// "RoCE CNP captured on ConnectX-4 Lx".
pub(crate) fn connectx_cnp() -> Vec<u8> {
    hex("e41d 2dab 2bc2 7cfe 9064 3b32 0800 45c2
         003c 718c 4000 4011 9161 0a00 1101 0a00
         1201 0000 12b7 0028 0000 8100 ffff 4000
         0118 0000 0000 0000 0000 0000 0000 0000
         0000 0000 0000 82fd 002a")
}

/// A UC SEND with pad and with a UDP checksum. The fields, checksums and iCRC are from the tests
/// of Scapy, `test/contrib/roce.uts`, "an example UC packet".
pub(crate) fn scapy_uc_send() -> Vec<u8> {
    hex("248a07a8fa22 248a07a8fa22 0800
         4501 0040 0478 4000 4011 b4d5 c0a80007 c0a80007
         c000 12b7 002c aca2
         24 60 ffff 00 0000d3 00 cf1710
         4630818be28935d90e9a95505401be885e50 0000
         78f353f3")
}

#[test]
fn connectx_cnp_is_read() {
    let frame = connectx_cnp();
    let packet = parse(&frame).unwrap();
    assert!(packet.icrc_ok);
    assert_eq!(packet.icrc.to_le_bytes(), [0x82, 0xfd, 0x00, 0x2a]);
    assert_eq!(packet.payload, [0; CNP_PAYLOAD_LEN]);

    let header = packet.header;
    assert_eq!(
        header.ethernet.dst,
        MacAddr([0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2])
    );
    assert_eq!(header.ethernet.vlan, None);
    assert_eq!(header.udp_src_port, 0);
    assert_eq!(header.ip.traffic_class(), 0xc2);
    assert_eq!(header.ip.src_gid().to_string(), "::ffff:10.0.17.1");
    assert_eq!(header.ip.dst_gid().to_string(), "::ffff:10.0.18.1");
    let expected = Bth {
        migration: false,
        becn: true,
        ..Bth::new(Opcode::Cnp, 0x118, Psn::new(0))
    };
    assert_eq!(header.bth, expected);
}

#[test]
fn connectx_cnp_is_written_byte_for_byte() {
    let frame = connectx_cnp();
    let packet = parse(&frame).unwrap();
    assert_eq!(build(&packet.header, packet.payload), frame);
}

#[test]
fn scapy_uc_send_is_read() {
    let frame = scapy_uc_send();
    let packet = parse(&frame).unwrap();
    assert!(packet.icrc_ok);
    assert_eq!(packet.icrc.to_le_bytes(), [0x78, 0xf3, 0x53, 0xf3]);
    assert_eq!(packet.payload.len(), 18);
    assert_eq!(&packet.payload[..4], b"F0\x81\x8b");
    let expected = Bth {
        pad: 2,
        ..Bth::new(Opcode::UcSendOnly, 211, Psn::new(13_571_856))
    };
    assert_eq!(packet.header.bth, expected);
    let Ip::V4(ip) = packet.header.ip else {
        panic!("IPv4 expected")
    };
    assert_eq!(
        (ip.identification, ip.dont_fragment, ip.ecn, ip.total_len),
        (1144, true, 1, 64)
    );
}

#[test]
fn scapy_uc_send_is_written_but_for_its_udp_checksum() {
    let mut frame = scapy_uc_send();
    let packet = parse(&frame).unwrap();
    let ours = build(&packet.header, packet.payload);
    // The sender computed one; this crate sends zero. The iCRC masks it.
    frame[40..42].fill(0);
    assert_eq!(ours, frame);
}

#[test]
fn the_reference_agrees_with_strangers() {
    for frame in [connectx_cnp(), scapy_uc_send()] {
        assert_eq!(
            reference_icrc(&frame).to_le_bytes(),
            frame[frame.len() - 4..]
        );
        assert_eq!(
            icrc(&frame[14..frame.len() - 4]),
            Ok(reference_icrc(&frame))
        );
    }
}

/// An ACK with reserved bits set, a UDP checksum and Ethernet padding, its fields printed beside it
/// by another tool. From the tests of a libtins fork, `Cerebras/libtins`,
/// `tests/src/rocev2_test.cpp`, packet 4. It was made without an iCRC.
pub(crate) fn pktlib_ack() -> Vec<u8> {
    hex("0000000000dd 12345678abcd 0800
         45 4b 0030 f7e7 0000 10 11 ccc3 82726353 00000002
         cba9 12b7 001c 3a0d
         11 00 ffff 8d 000041 48 00003e 1b 000001 00000000
         a4c32b491460c5163617beb863dee70d9ae0d3")
}

#[test]
fn pktlib_ack_is_read() {
    let frame = pktlib_ack();
    let packet = parse(&frame).unwrap();
    assert!(!packet.icrc_ok);
    assert_eq!((packet.icrc, packet.payload.len()), (0, 0));
    let header = packet.header;
    let ack = Bth::new(Opcode::RcAcknowledge, 0x41, Psn::new(0x3e));
    // Reserved byte 0x8d has the FECN bit among others; reserved 0x48 is not the acknowledge bit.
    assert_eq!(
        header.bth,
        Bth {
            migration: false,
            fecn: true,
            ..ack
        }
    );
    assert_eq!(
        header.aeth,
        Some(Aeth {
            syndrome: Syndrome::Ack { credits: 27 },
            msn: 1
        })
    );
    assert_eq!(header.extended(), Headers::AETH);
    assert_eq!(header.udp_src_port, 0xcba9);
    assert_eq!(
        (header.ip.traffic_class(), header.ip.hop_limit()),
        (0x4b, 0x10)
    );
    assert_eq!(
        header.ip.src_gid(),
        Gid::from_ipv4([0x82, 0x72, 0x63, 0x53])
    );
}

#[test]
fn a_wrong_icrc_is_reported_not_refused() {
    let mut frame = connectx_cnp();
    let last = frame.len() - 1;
    frame[last] ^= 1;
    let packet = parse(&frame).unwrap();
    assert!(!packet.icrc_ok);
    assert_eq!(packet.header.bth.opcode, Opcode::Cnp);
    assert!(
        faultline_wire::packet::parse_trusted(&frame)
            .unwrap()
            .icrc_ok
    );
}

#[test]
fn sealing_restores_the_icrc_and_clears_the_pad() {
    let mut frame = scapy_uc_send();
    let len = frame.len();
    frame[len - 6..].fill(0xee);
    seal(&mut frame).unwrap();
    assert_eq!(frame, scapy_uc_send());
}

#[test]
fn sealing_refuses_ethernet_padding() {
    let mut frame = scapy_uc_send();
    frame.push(0);
    let error = WireError::BadLength {
        declared: frame.len() - 1,
        available: frame.len(),
    };
    assert_eq!(seal(&mut frame), Err(error));
}

#[test]
fn ordinary_traffic_is_not_roce() {
    let mut fragment = connectx_cnp();
    fragment[20] = 0x20; // more fragments
    let mut tcp = connectx_cnp();
    tcp[23] = 6;
    let mut dns = connectx_cnp();
    dns[36..38].copy_from_slice(&53u16.to_be_bytes());
    let mut arp = connectx_cnp();
    arp[13] = 6;
    let mut double_tag = connectx_cnp();
    double_tag.splice(12..12, [0x81, 0, 0, 1, 0x81, 0, 0, 2]);
    // A broken checksum in a frame that is not RoCE is left to the network stack.
    for frame in [
        fragment,
        tcp,
        dns,
        arp,
        double_tag,
        vec![],
        vec![0; 13],
        vec![0xff; 60],
    ] {
        assert_eq!(parse(&frame), Err(WireError::NotRoce), "{frame:02x?}");
        assert!(!faultline_wire::packet::is_roce(&frame));
    }
    assert!(faultline_wire::packet::is_roce(&connectx_cnp()));
}

#[test]
fn broken_roce_is_refused_with_its_reason() {
    let broken = |at: usize, byte: u8| {
        let mut frame = connectx_cnp();
        frame[at] = byte;
        parse(&frame).unwrap_err()
    };
    assert_eq!(broken(24, 0), WireError::BadChecksum);
    assert_eq!(
        broken(39, 0x27),
        WireError::BadLength {
            declared: 0x27,
            available: 40
        }
    );
    assert_eq!(broken(42, 0x83), WireError::UnknownOpcode(0x83));
    assert_eq!(broken(42, 0x44), WireError::UnknownOpcode(0x44)); // RD SEND ONLY
    assert_eq!(broken(43, 0x01), WireError::BadVersion(1));

    // The packet is too short for the headers of its opcode: COMPARE SWAP needs 40 bytes, it has
    // 28.
    assert_eq!(
        broken(42, 0x13),
        WireError::Truncated { need: 40, have: 28 }
    );

    // More pad than payload: an ACK with its four bytes of AETH and a pad of 3.
    let mut ack = connectx_cnp();
    ack.truncate(14 + 20 + 8 + 12 + 4 + 4);
    let lens = ((ack.len() - 14) as u16, (ack.len() - 34) as u16);
    ack[16..18].copy_from_slice(&lens.0.to_be_bytes());
    ack[38..40].copy_from_slice(&lens.1.to_be_bytes());
    ack[24..26].copy_from_slice(&[0x91, 0x61 + 12]);
    ack[42] = 0x11;
    assert!(parse(&ack).is_ok());
    ack[43] = 0x30;
    assert_eq!(
        parse(&ack),
        Err(WireError::BadLength {
            declared: 3,
            available: 0
        })
    );

    // A payload that is not a multiple of four with its pad.
    let mut odd = scapy_uc_send();
    odd.truncate(odd.len() - 1);
    odd[17] -= 1;
    odd[25] += 1;
    odd[39] -= 1;
    assert_eq!(
        parse(&odd),
        Err(WireError::BadLength {
            declared: 2,
            available: 19
        })
    );

    // IPv4 options in front of port 4791.
    let mut options = connectx_cnp();
    options[14] = 0x46;
    options.splice(34..34, [1, 1, 1, 1]);
    assert_eq!(parse(&options), Err(WireError::IpOptions(24)));
}
