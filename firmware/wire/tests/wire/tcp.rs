//! TCP headers: round trips, a second opinion from etherparse, and malformed options.

use etherparse::{TcpHeader, TcpOptionElement};
use faultline_wire::{Ip, SackBlocks, Seq, Tcp, TcpFlags, TcpOptions, Timestamps, WireError};
use proptest::prelude::*;

use crate::support::*;

fn sack(max: usize) -> impl Strategy<Value = SackBlocks> {
    proptest::collection::vec(any::<(u32, u32)>(), 0..=max).prop_map(|blocks| {
        let mut sack = SackBlocks::default();
        for (left, right) in blocks {
            assert!(sack.push(Seq(left), Seq(right)));
        }
        sack
    })
}

/// Options that fit into a header: those of a SYN, or those of other segments.
fn options() -> impl Strategy<Value = TcpOptions> {
    let timestamps = || {
        proptest::option::of(any::<(u32, u32)>())
            .prop_map(|both| both.map(|(value, echo)| Timestamps { value, echo }))
    };
    let syn = (
        any::<(Option<u16>, Option<u8>, bool)>(),
        timestamps(),
        sack(1),
    );
    let other = (timestamps(), sack(3));
    prop_oneof![
        syn.prop_map(
            |((mss, window_scale, sack_permitted), timestamps, sack)| TcpOptions {
                mss,
                window_scale,
                sack_permitted,
                timestamps,
                sack
            }
        ),
        other.prop_map(|(timestamps, sack)| TcpOptions {
            timestamps,
            sack,
            ..TcpOptions::default()
        }),
        sack(4).prop_map(|sack| TcpOptions {
            sack,
            ..TcpOptions::default()
        }),
    ]
}

fn tcp() -> impl Strategy<Value = Tcp> {
    (any::<(u16, u16, u32, u32, u8, u16, u16, u16)>(), options()).prop_map(
        |((src_port, dst_port, seq, ack, flags, window, checksum, urgent), options)| Tcp {
            src_port,
            dst_port,
            seq: Seq(seq),
            ack: Seq(ack),
            flags: TcpFlags::from_bits_retain(flags),
            window,
            checksum,
            urgent,
            options,
        },
    )
}

/// The options as etherparse reads them.
fn theirs(header: &TcpHeader) -> TcpOptions {
    let mut options = TcpOptions::default();
    for element in header.options_iterator() {
        match element.unwrap() {
            TcpOptionElement::Noop => (),
            TcpOptionElement::MaximumSegmentSize(mss) => options.mss = Some(mss),
            TcpOptionElement::WindowScale(shift) => options.window_scale = Some(shift),
            TcpOptionElement::SelectiveAcknowledgementPermitted => options.sack_permitted = true,
            TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
                let rest = rest.into_iter().flatten();
                for (left, right) in std::iter::once(first).chain(rest) {
                    assert!(options.sack.push(Seq(left), Seq(right)));
                }
            }
            TcpOptionElement::Timestamp(value, echo) => {
                options.timestamps = Some(Timestamps { value, echo });
            }
        }
    }
    options
}

proptest! {
    #[test]
    fn header(tcp in tcp()) {
        let len = tcp.header_len();
        let mut bytes = vec![0xa5; len];
        prop_assert_eq!(tcp.emit(&mut bytes), Ok(len));
        let short = tcp.emit(&mut vec![0; len - 1]);
        prop_assert_eq!(short, Err(WireError::BufferTooSmall { need: len, have: len - 1 }));
        let mut long = bytes.clone();
        long.extend_from_slice(&[0x5a; 1460]);
        prop_assert_eq!(Tcp::parse(&long), Ok((tcp, len)));
        for have in 0..len {
            prop_assert!(Tcp::parse(&bytes[..have]).is_err(), "prefix of {} bytes", have);
        }

        let (header, _) = TcpHeader::from_slice(&bytes).unwrap();
        prop_assert_eq!(header.source_port, tcp.src_port);
        prop_assert_eq!(header.destination_port, tcp.dst_port);
        prop_assert_eq!(header.sequence_number, tcp.seq.0);
        prop_assert_eq!(header.acknowledgment_number, tcp.ack.0);
        prop_assert_eq!(header.window_size, tcp.window);
        prop_assert_eq!(header.checksum, tcp.checksum);
        prop_assert_eq!(header.urgent_pointer, tcp.urgent);
        let flags = [
            (header.fin, TcpFlags::FIN), (header.syn, TcpFlags::SYN), (header.rst, TcpFlags::RST),
            (header.psh, TcpFlags::PSH), (header.ack, TcpFlags::ACK), (header.urg, TcpFlags::URG),
            (header.ece, TcpFlags::ECE), (header.cwr, TcpFlags::CWR),
        ];
        for (set, flag) in flags {
            prop_assert_eq!(set, tcp.flags.contains(flag), "{:?}", flag);
        }
        prop_assert_eq!(theirs(&header), tcp.options);
    }

    #[test]
    fn checksum(ip in ip(), tcp in tcp(), payload in proptest::collection::vec(any::<u8>(), 0..99), cut in 0..99usize, bit in any::<usize>()) {
        let tcp = Tcp { checksum: 0, ..tcp };
        let mut segment = vec![0; tcp.header_len()];
        tcp.emit(&mut segment).unwrap();
        let (one, two) = payload.split_at(cut.min(payload.len()));
        let checksum = Tcp::checksum(&ip, &segment, [one, two].into_iter());
        let header = TcpHeader::from_slice(&segment).unwrap().0;
        let theirs = match ip {
            Ip::V4(ip) => header.calc_checksum_ipv4_raw(ip.src, ip.dst, &payload).unwrap(),
            Ip::V6(ip) => header.calc_checksum_ipv6_raw(ip.src, ip.dst, &payload).unwrap(),
        };
        prop_assert_eq!(checksum, theirs);
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        segment.extend_from_slice(&payload);
        prop_assert!(Tcp::is_intact(&ip, &segment));
        let bit = bit % (segment.len() * 8);
        segment[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!Tcp::is_intact(&ip, &segment));
    }

    /// What is read from any octets can be written, unless it had more options than fit with our padding, and is read again as the same.
    #[test]
    fn any_octets(bytes in proptest::collection::vec(any::<u8>(), 0..80), offset in 5..16u8) {
        let mut bytes = bytes;
        if let Some(octet) = bytes.get_mut(12) {
            *octet = offset << 4;
        }
        if let Ok((tcp, len)) = Tcp::parse(&bytes) {
            prop_assert!(len <= bytes.len());
            let mut again = [0; Tcp::MAX_LEN];
            if let Ok(len) = tcp.emit(&mut again) {
                prop_assert_eq!(Tcp::parse(&again[..len]), Ok((tcp, len)));
            }
        }
    }
}

#[test]
fn malformed_options_are_refused() {
    let parse = |options: &[u8]| {
        let mut bytes = vec![0; Tcp::LEN];
        let padded = options.len().next_multiple_of(4);
        bytes[12] = ((Tcp::LEN + padded) as u8) << 2;
        bytes.extend_from_slice(options);
        bytes.resize(Tcp::LEN + padded, 0);
        Tcp::parse(&bytes).map(|(tcp, _)| tcp.options)
    };
    // A length of 0 would never end, one of 1 is shorter than kind and length.
    for malformed in [
        &[2, 0][..],
        &[2, 1],
        &[2],
        &[2, 3, 5],
        &[2, 5, 5, 5, 5],
        &[3, 2],
        &[3, 4, 1, 1],
        &[4, 3, 0],
        &[5, 2],
        &[5, 9, 0, 0, 0, 0, 0, 0, 0],
        &[5, 10, 0, 0],
        &[8, 9, 0, 0, 0, 0, 0, 0, 0],
        &[8, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[99, 0],
        &[99, 200, 1, 1],
    ] {
        let refused = parse(malformed);
        assert!(refused.is_err(), "{malformed:?}: {refused:?}");
    }
    // Unknown kinds are skipped; nothing after the end is looked at.
    let options = parse(&[99, 3, 7, 2, 4, 5, 0xb4, 0, 2, 0]).unwrap();
    assert_eq!(options.mss, Some(1460));
    let no_options = parse(&[]).unwrap();
    assert!(no_options.is_empty());
}

#[test]
fn too_long_headers_are_not_written() {
    let mut sack = SackBlocks::default();
    for n in 0..4 {
        assert!(sack.push(Seq(n), Seq(n + 1)));
    }
    assert!(!sack.push(Seq(9), Seq(10)));
    let options = TcpOptions {
        timestamps: Some(Timestamps::default()),
        sack,
        ..TcpOptions::default()
    };
    let tcp = Tcp {
        options,
        ..Tcp::default()
    };
    let refused = tcp.emit(&mut [0; 99]);
    assert!(matches!(
        refused,
        Err(WireError::FieldOutOfRange {
            field: "options",
            value: 48
        })
    ));
}

#[test]
fn sequence_numbers_wrap() {
    let last = Seq(u32::MAX);
    assert_eq!(last.add(2), Seq(1));
    assert_eq!(Seq(1).diff(last), 2);
    assert_eq!(last.diff(Seq(1)), -2);
}
