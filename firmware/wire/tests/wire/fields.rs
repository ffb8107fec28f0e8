//! The table of fields against the headers that the crate writes, and against packets of others.

use faultline_wire::field::{self, Field, Part, Strength};
use faultline_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, GSI_QKEY, Gid, Headers, Ip, MacAddr, Opcode,
    Psn, Reth, RoceHeader, Syndrome, XrcEth, parse,
};
use proptest::prelude::*;

use crate::known::{connectx_cnp, pktlib_ack, scapy_uc_send};
use crate::rxe::captured;
use crate::support::{self, build};

/// Fields of a part have all of its bits, in their order.
#[test]
fn each_bit_of_a_header_belongs_to_one_field() {
    for part in Part::ALL {
        let mut next = 0;
        for field in part.fields() {
            assert_eq!(field.at, next, "{part:?} {}", field.name);
            next += field.width;
        }
        assert_eq!(next, 8 * part.octets(), "{part:?}");
        let names = part.fields().iter().map(|field| field.name);
        assert_eq!(
            names.collect::<std::collections::BTreeSet<_>>().len(),
            part.fields().len()
        );
    }
}

/// Rules that `check` finds violated in a frame.
fn found(frame: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let header = parse(frame).unwrap().header;
    field::check(&header, frame, |misfit| found.push(misfit.to_string()));
    found
}

/// A packet as an adapter sends it.
fn good(opcode: Opcode, is_ipv6: bool) -> RoceHeader {
    let gid = |host: u8| match is_ipv6 {
        true => Gid::link_local(MacAddr([2, 0, 0, 0, 0, host])),
        false => Gid::from_ipv4([10, 0, 0, host]),
    };
    let ip = Ip::from_gids(gid(1), gid(2), 0, 0, 64);
    let bth = Bth::new(opcode, 0x11, Psn::new(0));
    let mac = |host| MacAddr([2, 0, 0, 0, 0, host]);
    let mut header = RoceHeader::new(mac(2), mac(1), ip, bth);
    header.bth.becn = opcode == Opcode::Cnp;
    let has = |headers| opcode.has(headers);
    header.xrceth = has(Headers::XRCETH).then_some(XrcEth { srqn: 7 });
    header.deth = has(Headers::DETH).then_some(Deth {
        qkey: 5,
        src_qp: 0x12,
    });
    header.feth = has(Headers::FETH).then_some(Feth {
        selectivity: Feth::RANGE,
        placement: Feth::GLOBAL,
    });
    header.reth = has(Headers::RETH).then_some(Reth {
        addr: 0x1000,
        rkey: 9,
        len: 8,
    });
    header.atomic = has(Headers::ATOMIC_ETH).then_some(AtomicEth {
        addr: 0x1000,
        ..AtomicEth::default()
    });
    header.aeth = has(Headers::AETH).then_some(Aeth {
        syndrome: Syndrome::ACK,
        msn: 1,
    });
    header.atomic_ack = has(Headers::ATOMIC_ACK_ETH).then_some(AtomicAckEth::default());
    header.imm = has(Headers::IMM).then_some(1);
    header.ieth = has(Headers::IETH).then_some(2);
    header
}

fn payload(opcode: Opcode) -> usize {
    match opcode {
        Opcode::Cnp => 16,
        Opcode::RcAtomicWrite | Opcode::XrcAtomicWrite => 8,
        _ => 0,
    }
}

#[test]
fn a_packet_of_each_opcode_conforms() {
    for &opcode in Opcode::ALL {
        for is_ipv6 in [false, true] {
            let header = good(opcode, is_ipv6);
            let frame = build(&header, &vec![0; payload(opcode)]);
            assert_eq!(found(&frame), [""; 0], "{opcode:?}");
            let parts: Vec<_> = field::parts(&header).collect();
            let (last, at) = parts.last().copied().unwrap();
            let end = at + last.octets() - if last == Part::Cnp { 16 } else { 0 };
            assert_eq!(end, header.header_len(), "{opcode:?}");
        }
    }
}

/// Each reserved bit is judged, also those that parsing drops.
#[test]
fn reserved_bits_are_found() {
    let mut seen = std::collections::BTreeSet::new();
    for &opcode in Opcode::ALL {
        let header = good(opcode, false);
        let frame = build(&header, &vec![0; payload(opcode)]);
        for (part, at) in field::parts(&header) {
            let fields = part.fields().iter();
            for reserved in fields.filter(|field| field.name.starts_with("res")) {
                for bit in 0..reserved.width {
                    let mut bad = frame.clone();
                    reserved.write(&mut bad[at..], 1 << bit);
                    let mut found = 0;
                    field::check(&header, &bad, |misfit| {
                        assert_eq!((misfit.part, misfit.value), (part, 1 << bit));
                        assert_eq!(misfit.limit.strength, Strength::Required);
                        found += 1;
                    });
                    assert_eq!(found, 1, "{opcode:?} {part:?} {}", reserved.name);
                    seen.insert((part.name(), reserved.name, bit));
                }
            }
        }
    }
    // IPv4 1; BTH 6 and 7; XRCETH 8; DETH 8; FETH 26; CNP 128.
    assert_eq!(seen.len(), 1 + 6 + 7 + 8 + 8 + 26 + 128);
}

type Change = fn(&mut RoceHeader);

/// By service and opcode: values that another packet may have.
const CASES: [(Opcode, Change, Option<Strength>); 25] = [
    (Opcode::RcSendOnly, |h| h.bth.solicited = true, None),
    (
        Opcode::RcWriteLastWithImmediate,
        |h| h.bth.solicited = true,
        None,
    ),
    (
        Opcode::RcSendMiddle,
        |h| h.bth.solicited = true,
        Some(Strength::Required),
    ),
    (
        Opcode::RcWriteOnly,
        |h| h.bth.solicited = true,
        Some(Strength::Required),
    ),
    (
        Opcode::RcAcknowledge,
        |h| h.bth.solicited = true,
        Some(Strength::Required),
    ),
    (Opcode::RcSendOnly, |h| h.bth.ack_req = true, None),
    (
        Opcode::RcAcknowledge,
        |h| h.bth.ack_req = true,
        Some(Strength::Required),
    ),
    (
        Opcode::UdSendOnly,
        |h| h.bth.ack_req = true,
        Some(Strength::Expected),
    ),
    (
        Opcode::UcSendOnly,
        |h| h.bth.ack_req = true,
        Some(Strength::Expected),
    ),
    (
        Opcode::RcSendOnly,
        |h| h.bth.fecn = true,
        Some(Strength::Expected),
    ),
    (
        Opcode::RcSendOnly,
        |h| h.bth.dest_qp = 1,
        Some(Strength::Required),
    ),
    (Opcode::UdSendOnly, |h| h.bth.dest_qp = 0xff_ffff, None),
    // Queue pair 1 has its own Q_Key.
    (
        Opcode::UdSendOnly,
        |h| h.bth.dest_qp = 1,
        Some(Strength::Expected),
    ),
    (
        Opcode::UdSendOnly,
        |h| {
            h.bth.dest_qp = 1;
            h.deth = Some(Deth {
                qkey: GSI_QKEY,
                src_qp: 1,
            });
        },
        None,
    ),
    // A notification for a datagram of queue pair 1.
    (Opcode::Cnp, |h| h.bth.dest_qp = 1, None),
    (Opcode::Cnp, |h| h.bth.dest_qp = 0, Some(Strength::Required)),
    (
        Opcode::Cnp,
        |h| h.bth.dest_qp = 0xff_ffff,
        Some(Strength::Required),
    ),
    (
        Opcode::RcFlush,
        |h| h.feth.as_mut().unwrap().placement = 0,
        Some(Strength::Required),
    ),
    (
        Opcode::RcFlush,
        |h| h.feth.as_mut().unwrap().placement = 4,
        Some(Strength::Required),
    ),
    (
        Opcode::RcFlush,
        |h| h.feth.as_mut().unwrap().selectivity = 2,
        Some(Strength::Required),
    ),
    (
        Opcode::RcFetchAdd,
        |h| h.atomic.as_mut().unwrap().addr = 0x1004,
        Some(Strength::Expected),
    ),
    (
        Opcode::RcAtomicWrite,
        |h| h.reth.as_mut().unwrap().addr = 0x1004,
        Some(Strength::Expected),
    ),
    (
        Opcode::RcWriteOnly,
        |h| h.reth.as_mut().unwrap().addr = 0x1004,
        None,
    ),
    (
        Opcode::RcAtomicAcknowledge,
        |h| h.aeth.as_mut().unwrap().syndrome = Syndrome::RnrNak { timer: 1 },
        Some(Strength::Required),
    ),
    (
        Opcode::Cnp,
        |h| h.bth.psn = Psn::new(5),
        Some(Strength::Expected),
    ),
];

#[test]
fn values_depend_on_the_opcode() {
    for (opcode, change, expected) in CASES {
        let mut header = good(opcode, false);
        change(&mut header);
        let frame = build(&header, &vec![0; payload(opcode)]);
        let mut strengths = Vec::new();
        field::check(&header, &frame, |misfit| {
            strengths.push(misfit.limit.strength);
        });
        let expected: Vec<Strength> = expected.into_iter().collect();
        assert_eq!(strengths, expected, "{opcode:?} {:?}", found(&frame));
    }
}

/// Packets of adapters and of `rdma_rxe` conform. Those of a packet maker that sets reserved bits on purpose do not.
#[test]
fn packets_of_others_conform() {
    for packet in captured() {
        assert_eq!(found(&packet.frame), [""; 0], "{:#x}", packet.opcode);
    }
    for frame in [connectx_cnp(), scapy_uc_send()] {
        assert_eq!(found(&frame), [""; 0]);
    }
    let texts = found(&pktlib_ack());
    let names = ["don't fragment", "FECN", "resv6", "resv7"];
    assert_eq!(texts.len(), names.len(), "{texts:?}");
    for (text, name) in texts.iter().zip(names) {
        assert!(text.contains(name), "{text}");
    }
}

proptest! {
    /// A field is read as it was written, and leaves the others as they are.
    #[test]
    fn fields_are_read_as_written(
        part in proptest::sample::select(&Part::ALL[..]),
        octets in any::<[u8; 40]>(),
        value in any::<u128>(),
        index in any::<proptest::sample::Index>(),
    ) {
        let all = |octets: &[u8]| -> Vec<u128> {
            part.fields().iter().map(|field: &Field| field.read(octets)).collect()
        };
        let index = index.index(part.fields().len());
        let field = &part.fields()[index];
        let mut expected = all(&octets);
        expected[index] = value & field.mask();
        let mut changed = octets;
        field.write(&mut changed, value);
        prop_assert_eq!(all(&changed), expected);
        prop_assert_eq!(&changed[part.octets()..], &octets[part.octets()..]);
    }

    /// Any bytes and headers are compared without a panic, cut ones too.
    #[test]
    fn any_bytes_are_compared(header in support::roce_header(), octets in proptest::collection::vec(any::<u8>(), 0..120)) {
        field::check(&header, &octets, |misfit| { let _ = misfit.to_string(); });
    }
}

#[test]
fn text_of_a_misfit() {
    let mut header = good(Opcode::RcSendOnly, false);
    header.bth.pkey = 0x8000;
    let frame = build(&header, &[]);
    assert_eq!(
        found(&frame),
        ["BTH P_Key is 0x8000, and must name a partition in each packet"]
    );
}
