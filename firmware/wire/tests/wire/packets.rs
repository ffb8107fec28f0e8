//! Whole packets: round trips, damage, and the iCRC against a second implementation.

use faultline_wire::packet::{MAX_HEADER_LEN, is_roce, parse_trusted};
use faultline_wire::{
    Ethernet, Ip, Opcode, Psn, RoceHeader, WireError, icrc::Icrc, pad_len, parse, seal,
};
use proptest::prelude::*;

use crate::support::*;

/// `header` as it is on the wire, with the fields that `emit` computes.
fn completed(mut header: RoceHeader, payload_len: usize) -> RoceHeader {
    let udp_len = 8 + header.transport_len() + payload_len.div_ceil(4) * 4 + 4;
    header.bth.pad = (payload_len.div_ceil(4) * 4 - payload_len) as u8;
    match &mut header.ip {
        Ip::V4(ip) => {
            ip.protocol = 17;
            ip.total_len = (20 + udp_len) as u16;
        }
        Ip::V6(ip) => {
            ip.next_header = 17;
            ip.payload_len = udp_len as u16;
        }
    }
    header
}

/// Bytes of the L3 packet that do not affect the iCRC.
fn masked(header: &RoceHeader) -> Vec<usize> {
    let mut masked = match header.ip {
        Ip::V4(_) => vec![1, 8, 10, 11],
        Ip::V6(_) => vec![1, 2, 3, 7],
    };
    let udp = header.ip.header_len();
    masked.extend([udp + 6, udp + 7, udp + 8 + 4]);
    masked
}

proptest! {
    #[test]
    fn round_trip(header in roce_header(), len in 0..600usize, padding in 0..64usize) {
        let payload = pattern(len);
        let mut frame = build(&header, &payload);
        prop_assert_eq!(frame.len(), header.frame_len(len));
        prop_assert!(header.header_len() <= MAX_HEADER_LEN);

        // Ethernet pads short frames.
        frame.resize(frame.len() + padding, 0xcc);
        prop_assert!(is_roce(&frame));
        let packet = parse(&frame).unwrap();
        prop_assert!(packet.icrc_ok);
        prop_assert_eq!(packet.header, completed(header, len));
        prop_assert_eq!(packet.payload, &payload[..]);
        prop_assert_eq!(parse_trusted(&frame).unwrap(), packet);
    }

    #[test]
    fn pad_bytes_are_zero(header in roce_header(), len in 0..64usize) {
        let frame = build(&header, &pattern(len));
        let pad = &frame[header.header_len() + len..frame.len() - 4];
        prop_assert_eq!(pad.len(), pad_len(len));
        prop_assert!(pad.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn icrc_agrees_with_the_reference(header in roce_header(), len in 0..600usize) {
        let frame = build(&header, &pattern(len));
        let expected = reference_icrc(&frame);
        prop_assert_eq!(parse(&frame).unwrap().icrc, expected);
        prop_assert_eq!(&frame[frame.len() - 4..], &expected.to_le_bytes()[..]);
    }

    #[test]
    fn icrc_in_pieces_is_the_icrc(
        header in roce_header(),
        len in 0..600usize,
        piece in 1..200usize,
    ) {
        let frame = build(&header, &pattern(len));
        let l3 = &frame[header.ethernet.header_len()..frame.len() - 4];
        let (head, tail) = l3.split_at(header.header_len() - header.ethernet.header_len());
        let mut icrc = Icrc::new(head).unwrap();
        for piece in tail.chunks(piece) {
            icrc.update(piece);
        }
        prop_assert_eq!(icrc.finish(), parse(&frame).unwrap().icrc);
    }

    /// A packet with a flipped bit behind the Ethernet header is not accepted, unless routers may change the byte.
    /// Senders write no UDP checksum, so any other is wrong.
    #[test]
    fn bit_flips_are_detected(
        header in roce_header(),
        len in 0..300usize,
        at in any::<proptest::sample::Index>(),
        bit in 0..8u32,
    ) {
        let mut frame = build(&header, &pattern(len));
        let l3_at = header.ethernet.header_len();
        let at = at.index(frame.len() - l3_at);
        let v6 = matches!(header.ip, Ip::V6(_));
        frame[l3_at + at] ^= 1 << bit;
        let taken = parse(&frame).is_ok_and(|packet| packet.icrc_ok);
        let may_change = masked(&header).contains(&at) || v6 && at == 0 && bit < 4;
        let udp_checksum = header.ip.header_len() + 6;
        let is_checksum = (udp_checksum..udp_checksum + 2).contains(&at);
        if !may_change || is_checksum {
            prop_assert!(!taken, "byte {} bit {}", at, bit);
        } else if v6 {
            prop_assert!(taken, "byte {} bit {}", at, bit);
        } else {
            // IPv4 guards some of the masked bytes by its own checksum.
            prop_assert_eq!(taken, at >= 20, "byte {} bit {}", at, bit);
        }
    }

    #[test]
    fn prefixes_are_refused(header in roce_header(), len in 0..40usize) {
        let frame = build(&header, &pattern(len));
        for have in 0..frame.len() {
            prop_assert!(parse(&frame[..have]).is_err(), "prefix of {} bytes", have);
            prop_assert!(seal(&mut frame[..have].to_vec()).is_err());
        }
    }

    #[test]
    fn short_buffers_are_refused(header in roce_header(), len in 0..40usize) {
        let need = header.header_len();
        for have in 0..need {
            let error = Err(WireError::BufferTooSmall { need, have });
            prop_assert_eq!(header.emit(len, &mut vec![0; have]), error);
        }
    }

    /// Only the extended headers of the opcode may be present, and all of them must.
    #[test]
    fn other_extended_headers_are_refused(header in roce_header(), opcode in opcode()) {
        let mut changed = header;
        changed.bth.opcode = opcode;
        let same = header.bth.opcode.info().headers == opcode.info().headers;
        let result = changed.emit(0, &mut [0; MAX_HEADER_LEN]);
        if same {
            prop_assert_eq!(result, Ok(header.header_len()));
        } else {
            prop_assert_eq!(result, Err(WireError::WrongHeaders(opcode.to_u8())));
        }
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused(header in roce_header(), len in 65_530..=usize::MAX) {
        let refused = header.emit(len, &mut [0; MAX_HEADER_LEN]);
        prop_assert!(matches!(refused, Err(WireError::BadLength { .. })), "{:?}", refused);
        let _ = header.frame_len(len);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = parse(&bytes);
        let _ = seal(&mut bytes);
    }

    /// As above, but close enough to a packet to get past the first checks: several bytes of a
    /// good packet are overwritten, the length may change, the IPv4 checksum is made right.
    #[test]
    fn damaged_packets_do_not_panic(
        header in roce_header(),
        len in 0..100usize,
        cut in 0..80usize,
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut frame = build(&header, &pattern(len));
        frame.truncate(frame.len().saturating_sub(cut).max(1));
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        if let Ok((_, at)) = Ethernet::parse(&frame)
            && let Some(ip) = frame.get_mut(at..at + 20)
            && ip[0] == 0x45
        {
            ip[10..12].fill(0);
            let sum = etherparse::Ipv4Header::from_slice(ip).map(|(h, _)| h.calc_header_checksum());
            if let Ok(sum) = sum {
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
            }
        }
        let parsed = parse(&frame).map(|packet| (packet.header, packet.payload.to_vec()));
        let mut sealed = frame.clone();
        let seal_result = seal(&mut sealed);
        if let Ok((header, payload)) = parsed {
            // A parsed packet can be written again.
            let again = build(&header, &payload);
            prop_assert_eq!(parse(&again).unwrap().header, header);
            if seal_result.is_ok() {
                prop_assert!(parse(&sealed).unwrap().icrc_ok);
            }
        }
    }
}

/// Every bit of one packet of every opcode over both IP versions.
#[test]
fn no_bit_of_any_opcode_is_unguarded() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::HashSet::new();
    while seen.len() < 2 * Opcode::ALL.len() {
        let header = roce_header().new_tree(&mut runner).unwrap().current();
        let v6 = matches!(header.ip, Ip::V6(_));
        if !seen.insert((header.bth.opcode, v6)) {
            continue;
        }
        let good = build(&header, &pattern(5));
        let l3_at = header.ethernet.header_len();
        let masked = masked(&header);
        for bit in 0..(good.len() - l3_at) * 8 {
            let at = bit / 8;
            if masked.contains(&at) || v6 && at == 0 && bit % 8 < 4 {
                continue;
            }
            let mut frame = good.clone();
            frame[l3_at + at] ^= 1 << (bit % 8);
            let taken = parse(&frame).is_ok_and(|packet| packet.icrc_ok);
            assert!(!taken, "{:?}: byte {at} bit {}", header.bth.opcode, bit % 8);
        }
    }
}

/// A router marks congestion, counts hops and renews the checksum; the iCRC stays valid.
#[test]
fn the_icrc_survives_routing() {
    use faultline_wire::{Bth, Gid, MacAddr};
    let mac = |n| MacAddr([2, 0, 0, 0, 0, n]);
    let gids = [
        (Gid::from_ipv4([10, 0, 0, 1]), Gid::from_ipv4([10, 0, 1, 1])),
        (Gid::link_local(mac(1)), Gid::link_local(mac(2))),
    ];
    for (src, dst) in gids {
        let ip = Ip::from_gids(src, dst, 0x6a, 0x12345, 64);
        let bth = Bth::new(Opcode::RcSendMiddle, 17, Psn::new(0xff_ffff));
        let header = RoceHeader::new(mac(2), mac(1), ip, bth);
        let frame = build(&header, &pattern(1024));
        let before = parse(&frame).unwrap();

        let mut routed = before.header;
        routed.ethernet.dst = mac(9);
        routed.ip.set_ecn(3);
        match &mut routed.ip {
            Ip::V4(ip) => ip.ttl -= 1,
            Ip::V6(ip) => {
                ip.hop_limit -= 1;
                ip.flow_label = 0;
            }
        }
        routed.bth.fecn = true;
        let mut bytes = frame.clone();
        let at = routed.emit(1024, &mut bytes).unwrap();
        assert_ne!(bytes[..at], frame[..at]);
        let after = parse(&bytes).unwrap();
        assert!(after.icrc_ok);
        assert_eq!(after.icrc, before.icrc);
        assert_eq!(after.header.ip.ecn(), 3);
    }
}
