//! MPA, DDP and RDMAP: round trips, octets that were counted by hand from the RFCs, and any octets.

use std::fmt::Debug;

use faultline_wire::WireError;
use faultline_wire::ddp::{DDP_VERSION, Ddp, DdpTarget, queue};
use faultline_wire::mpa::{
    Crc32c, EnhancedSetup, Fpdu, Marker, Markers, MpaFlags, MpaRole, MpaSetup,
};
use faultline_wire::rdmap::{
    AtomicRequest, AtomicResponse, RdmapControl, RdmapOpcode, ReadRequest, Terminate, TerminateCode,
};
use proptest::prelude::*;

type Parsed<T> = Result<(T, usize), WireError>;

/// Writes into a dirty buffer of just the right size, refuses one that is an octet short, reads it back from a longer one, and refuses
/// each prefix.
fn round_trip<T: Debug + PartialEq>(
    value: T,
    len: usize,
    emit: impl Fn(&T, &mut [u8]) -> Result<usize, WireError>,
    parse: impl Fn(&[u8]) -> Parsed<T>,
) -> Vec<u8> {
    let mut octets = vec![0xa5; len];
    assert_eq!(emit(&value, &mut octets), Ok(len));
    assert!(emit(&value, &mut vec![0; len - 1]).is_err());
    let mut long = octets.clone();
    long.extend_from_slice(&[0x5a; 100]);
    assert_eq!(parse(&long), Ok((value, len)));
    for have in 0..len {
        assert!(parse(&octets[..have]).is_err(), "prefix of {have} octets");
    }
    octets
}

fn ddp() -> impl Strategy<Value = Ddp> {
    let tagged = any::<(u32, u64)>().prop_map(|(stag, offset)| DdpTarget::Tagged { stag, offset });
    let untagged =
        any::<(u32, u32, u32, u32)>().prop_map(|(upper, queue, msn, offset)| DdpTarget::Untagged {
            upper,
            queue,
            msn,
            offset,
        });
    let target = prop_oneof![tagged, untagged];
    (any::<(bool, u8)>(), 0..4u8, target).prop_map(|((last, upper_control), version, target)| Ddp {
        last,
        version,
        upper_control,
        target,
    })
}

proptest! {
    #[test]
    fn setup(reply in any::<bool>(), flags in 0..16u8, revision in any::<u8>(), private_data_len in 0..=512u16) {
        let role = if reply { MpaRole::Reply } else { MpaRole::Request };
        let flags = MpaFlags::from_bits_truncate(flags << 4);
        let setup = MpaSetup { role, flags, revision, private_data_len };
        round_trip(setup, MpaSetup::LEN, MpaSetup::emit, MpaSetup::parse);
    }

    #[test]
    fn enhanced_setup(ird in 0..1u16 << 14, ord in 0..1u16 << 14, flags in any::<[bool; 4]>()) {
        let [peer_to_peer, rtr_send, rtr_write, rtr_read] = flags;
        let setup = EnhancedSetup { ird, ord, peer_to_peer, rtr_send, rtr_write, rtr_read };
        round_trip(setup, EnhancedSetup::LEN, EnhancedSetup::emit, EnhancedSetup::parse);
        let too_deep = EnhancedSetup { ird: ird | 1 << 14, ..setup };
        prop_assert!(too_deep.emit(&mut [0; 4]).is_err());
    }

    #[test]
    fn fpdu(ulpdu_len in any::<u16>()) {
        let fpdu = Fpdu { ulpdu_len };
        round_trip(fpdu, Fpdu::HEADER_LEN, Fpdu::emit, Fpdu::parse);
        prop_assert_eq!(fpdu.len(), 2 + usize::from(ulpdu_len) + fpdu.pad_len() + 4);
        prop_assert!(fpdu.len().is_multiple_of(4) && fpdu.pad_len() < 4);
    }

    #[test]
    fn crc_in_pieces(octets in proptest::collection::vec(any::<u8>(), 0..2000), cut in 0..2000usize) {
        let (one, two) = octets.split_at(cut.min(octets.len()));
        let mut pieces = Crc32c::default();
        pieces.update(one);
        pieces.update(two);
        let theirs = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(&octets);
        prop_assert_eq!(pieces.finish(), theirs);
    }

    #[test]
    fn marker(distance in any::<u16>()) {
        round_trip(Marker { distance }, Marker::LEN, Marker::emit, Marker::parse);
    }

    /// Compares with markers that are inserted octet by octet.
    #[test]
    fn positions_of_markers(octets in 0..20_000u64, len in 1..5000u64) {
        let (mut at, mut start) = (0u64, 0u64);
        for octet in 0..octets + len {
            if octet == octets {
                start = at;
            }
            if at.is_multiple_of(512) {
                let marker = Markers::at(at, start);
                if octet > octets {
                    let header = if start.is_multiple_of(512) { start + 4 } else { start };
                    prop_assert_eq!(u64::from(marker.distance), at - header);
                } else if octet == octets {
                    prop_assert_eq!(marker.distance, 0);
                }
                // A marker belongs to the octet behind it.
                for part in 0..4 {
                    prop_assert_eq!(Markers::octets_before(at + part), octet);
                }
                at += 4;
            }
            prop_assert_eq!(Markers::octets_before(at), octet);
            at += 1;
            prop_assert_eq!(Markers::octets_before(at), octet + 1);
            prop_assert_eq!(Markers::position_after(octet + 1), at);
        }
        prop_assert_eq!(start, Markers::position_after(octets));
        prop_assert_eq!((at + Markers::next(at)) % 512, 0);
        prop_assert!(Markers::next(at) < 512);
        let inside = (at - start - len) / 4;
        prop_assert!(inside <= Markers::most_in(at - start));
    }

    #[test]
    fn ddp_header(ddp in ddp()) {
        round_trip(ddp, ddp.header_len(), Ddp::emit, Ddp::parse);
        let wrong = Ddp { version: 4, ..ddp };
        prop_assert!(wrong.emit(&mut [0; 18]).is_err());
    }

    #[test]
    fn rdmap_headers(a in any::<(u32, u64, u32, u32, u64)>(), b in any::<(u32, u32, u64, u64, u64, u64, u64)>(), operation in 0..16u8) {
        let request = ReadRequest { sink: (a.0, a.1), len: a.2, source: (a.3, a.4) };
        round_trip(request, ReadRequest::LEN, ReadRequest::emit, ReadRequest::parse);
        let (id, stag, offset, data, mask, compare, compare_mask) = b;
        let atomic = AtomicRequest { operation, id, stag, offset, data, mask, compare, compare_mask };
        round_trip(atomic, AtomicRequest::LEN, AtomicRequest::emit, AtomicRequest::parse);
        let response = AtomicResponse { id, original: data };
        round_trip(response, AtomicResponse::LEN, AtomicResponse::emit, AtomicResponse::parse);
    }

    #[test]
    fn terminate(
        (layer, error_type, code) in (0..16u8, 0..16u8, any::<u8>()),
        segment_len in proptest::option::of(any::<u16>()),
        ddp in proptest::option::of(ddp()),
        rdmap in proptest::option::of(any::<[u8; 28]>()),
    ) {
        let mut header = [0; 18];
        let len = ddp.map_or(0, |ddp| ddp.emit(&mut header).unwrap());
        let value = Terminate {
            code: TerminateCode { layer, error_type, code },
            segment_len,
            ddp_header: &header[..len],
            rdmap_header: rdmap.as_ref().map_or(&[], |octets| &octets[..]),
        };
        // By hand: its parser borrows.
        let len = value.message_len();
        let mut octets = vec![0xa5; len];
        prop_assert_eq!(value.emit(&mut octets), Ok(len));
        prop_assert!(value.emit(&mut vec![0; len - 1]).is_err());
        for have in 0..len {
            prop_assert!(Terminate::parse(&octets[..have]).is_err());
        }
        octets.push(0x5a);
        prop_assert_eq!(Terminate::parse(&octets), Ok((value, len)));
    }

    /// What is read from any octets can be written, and is read again as the same.
    #[test]
    fn any_octets(octets in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut out = [0; 100];
        macro_rules! again {
            ($($type:ty),*) => {$(
                if let Ok((value, len)) = <$type>::parse(&octets) {
                    prop_assert_eq!(value.emit(&mut out), Ok(len));
                    prop_assert_eq!(<$type>::parse(&out[..len]), Ok((value, len)));
                }
            )*};
        }
        again!(MpaSetup, EnhancedSetup, Fpdu, Marker, Ddp, ReadRequest, AtomicRequest, AtomicResponse);
        if let Ok((value, len)) = Terminate::parse(&octets) {
            let mut out = [0; 100];
            prop_assert_eq!(value.emit(&mut out), Ok(len));
            prop_assert_eq!(Terminate::parse(&out[..len]), Ok((value, len)));
        }
    }

    #[test]
    fn control_octets(octet in any::<u8>()) {
        let control = RdmapControl::from_u8(octet);
        prop_assert_eq!(control.to_u8(), octet & 0xcf);
        let opcode = RdmapOpcode::from_u8(control.opcode);
        prop_assert_eq!(opcode.is_some(), control.opcode < 12);
        prop_assert!(opcode.is_none_or(|opcode| opcode as u8 == control.opcode));
    }
}

#[test]
fn setup_frames_are_those_of_the_rfc() {
    let mut frame = *b"MPA ID Req Frame\x50\x02\x00\x04\x80\x10\x40\x20";
    let (setup, at) = MpaSetup::parse(&frame).unwrap();
    let flags = MpaFlags::CRC | MpaFlags::ENHANCED;
    let expected = MpaSetup {
        role: MpaRole::Request,
        flags,
        revision: 2,
        private_data_len: 4,
    };
    assert_eq!(setup, expected);
    let (enhanced, _) = EnhancedSetup::parse(&frame[at..]).unwrap();
    let expected = EnhancedSetup {
        ird: 16,
        ord: 32,
        peer_to_peer: true,
        rtr_read: true,
        ..EnhancedSetup::default()
    };
    assert_eq!(enhanced, expected);
    frame[0] = b'm';
    assert_eq!(MpaSetup::parse(&frame), Err(WireError::BadKey));
    frame[0] = b'M';
    frame[18..20].copy_from_slice(&513u16.to_be_bytes());
    assert!(matches!(
        MpaSetup::parse(&frame),
        Err(WireError::BadLength { .. })
    ));
    let (reply, _) = MpaSetup::parse(b"MPA ID Rep Frame\xe0\x01\x00\x00").unwrap();
    assert_eq!(reply.role, MpaRole::Reply);
    assert_eq!(
        reply.flags,
        MpaFlags::MARKERS | MpaFlags::CRC | MpaFlags::REJECT
    );
}

#[test]
fn crc_is_that_of_iscsi() {
    let mut crc = Crc32c::default();
    crc.update(b"123456789");
    assert_eq!(crc.finish(), 0xe306_9283);
    // 32 octets of zeros, RFC 3720 appendix B.4: aa 36 91 8a on the wire.
    let mut crc = Crc32c::default();
    crc.update(&[0; 32]);
    assert_eq!(crc.finish().to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
}

#[test]
fn headers_are_those_of_the_rfc() {
    let send = Ddp {
        last: true,
        version: DDP_VERSION,
        upper_control: RdmapControl::new(RdmapOpcode::SendInvalidate).to_u8(),
        target: DdpTarget::Untagged {
            upper: 0x0102_0304,
            queue: queue::SEND,
            msn: 7,
            offset: 1448,
        },
    };
    let mut octets = [0; 18];
    send.emit(&mut octets).unwrap();
    let expected = *b"\x41\x44\x01\x02\x03\x04\0\0\0\0\0\0\0\x07\0\0\x05\xa8";
    assert_eq!(octets, expected);
    let write = Ddp {
        last: false,
        upper_control: RdmapControl::new(RdmapOpcode::Write).to_u8(),
        target: DdpTarget::Tagged {
            stag: 0xaabb_ccdd,
            offset: 0x1122_3344_5566_7788,
        },
        ..send
    };
    write.emit(&mut octets).unwrap();
    let expected = *b"\x81\x40\xaa\xbb\xcc\xdd\x11\x22\x33\x44\x55\x66\x77\x88";
    assert_eq!(octets[..14], expected);
}

#[test]
fn queues_and_properties_of_messages() {
    for opcode in RdmapOpcode::ALL {
        assert_eq!(RdmapOpcode::from_u8(opcode as u8), Some(opcode));
        let queue = match opcode as u8 {
            0 | 2 => None,
            1 | 10 => Some(1),
            7 => Some(2),
            11 => Some(3),
            _ => Some(0),
        };
        assert_eq!(opcode.queue(), queue, "{opcode:?}");
        assert_eq!(opcode.invalidates(), [4, 6].contains(&(opcode as u8)));
        assert_eq!(opcode.is_solicited(), [5, 6, 9].contains(&(opcode as u8)));
    }
    assert_eq!(RdmapOpcode::from_u8(12), None);
}

#[test]
fn terminate_codes_differ() {
    for (n, (name, code)) in TerminateCode::ALL.iter().enumerate() {
        let others = &TerminateCode::ALL[n + 1..];
        assert!(others.iter().all(|(_, other)| other != code), "{name}");
        let layer = ["RDMAP", "DDP", "MPA"][usize::from(code.layer)];
        assert!(name.starts_with(layer), "{name}");
    }
}

fn untagged(offset: u32) -> Ddp {
    Ddp {
        last: true,
        version: DDP_VERSION,
        upper_control: 0,
        target: DdpTarget::Untagged {
            upper: 0,
            queue: queue::SEND,
            msn: 1,
            offset,
        },
    }
}

fn tagged(offset: u64) -> Ddp {
    Ddp {
        target: DdpTarget::Tagged { stag: 1, offset },
        ..untagged(0)
    }
}

#[test]
fn a_ulpdu_is_at_least_a_header() {
    for ddp in [tagged(0), untagged(0)] {
        let need = ddp.header_len();
        let len = |ulpdu_len| Fpdu { ulpdu_len }.payload_len(&ddp);
        assert_eq!(len(need as u16), Ok(0));
        assert_eq!(len(u16::MAX), Ok(65_535 - need as u32));
        let have = need - 1;
        assert_eq!(len(have as u16), Err(WireError::Truncated { need, have }));
        assert!(len(0).is_err());
    }
}

#[test]
fn offsets_do_not_wrap() {
    assert_eq!(tagged(u64::MAX - 10).end(10), Ok(u64::MAX));
    let wrap = Err(TerminateCode::DDP_TAGGED_OFFSET_WRAP);
    assert_eq!(tagged(u64::MAX - 10).end(11), wrap);
    assert_eq!(untagged(u32::MAX - 10).end(10), Ok(u32::MAX.into()));
    let wrap = Err(TerminateCode::DDP_UNTAGGED_OFFSET);
    assert_eq!(untagged(u32::MAX - 10).end(11), wrap);

    let read = |sink, source| ReadRequest {
        sink: (1, sink),
        len: u32::MAX,
        source: (2, source),
    };
    let most = u64::MAX - u64::from(u32::MAX);
    assert_eq!(read(0, most).ends(), Ok((u64::from(u32::MAX), u64::MAX)));
    let wrap = Err(TerminateCode::RDMAP_OFFSET_WRAP);
    assert_eq!(read(most + 1, 0).ends(), wrap);
    assert_eq!(read(0, most + 1).ends(), wrap);
}

/// A reader finds the end of these headers by their first bit and by their kind, so other lengths could not be read.
#[test]
fn terminate_has_whole_headers() {
    let emit = |ddp_header, rdmap_header| {
        let terminate = Terminate {
            code: TerminateCode::DDP_TAGGED_VERSION,
            segment_len: None,
            ddp_header,
            rdmap_header,
        };
        terminate.emit(&mut [0; 100])
    };
    let (tagged, untagged, read) = ([0x80; 20], [0x40; 20], [0; 30]);
    assert_eq!(emit(&tagged[..14], &read[..28]), Ok(46));
    assert_eq!(emit(&untagged[..18], &[]), Ok(22));
    for (ddp, rdmap) in [
        (&tagged[..18], &read[..0]),
        (&untagged[..14], &read[..0]),
        (&tagged[..1], &read[..0]),
        (&tagged[..0], &read[..27]),
        (&tagged[..14], &read[..29]),
    ] {
        let error = emit(ddp, rdmap);
        assert!(
            matches!(error, Err(WireError::BadLength { .. })),
            "{error:?}"
        );
    }
}
