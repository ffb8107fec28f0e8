//! Each header by itself: round trips, and a second opinion from etherparse.

use etherparse::{Ethernet2Header, Ipv4Header, Ipv6Header, SingleVlanHeader, UdpHeader};
use faultline_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ethernet, Feth, Gid, Ieth, ImmDt, Ip, Ipv4, Ipv6,
    MacAddr, Reth, Udp, VlanTag, WireError, XrcEth,
};
use proptest::prelude::*;

use crate::support::*;

/// Emits into a dirty buffer of just the right size, refuses one that is a byte short, reads it
/// back from a longer one, and refuses every prefix.
macro_rules! round_trip {
    ($type:ty, $value:expr, $len:expr) => {{
        let value: $type = $value;
        let len: usize = $len;
        let mut bytes = vec![0xa5; len];
        prop_assert_eq!(value.emit(&mut bytes), Ok(len));
        let short = value.emit(&mut vec![0; len - 1]);
        prop_assert_eq!(
            short,
            Err(WireError::BufferTooSmall {
                need: len,
                have: len - 1
            })
        );
        let mut long = bytes.clone();
        long.extend_from_slice(&[0x5a; 1500]);
        prop_assert_eq!(<$type>::parse(&long), Ok((value, len)));
        for have in 0..len {
            prop_assert!(
                <$type>::parse(&bytes[..have]).is_err(),
                "prefix of {} bytes",
                have
            );
        }
        bytes
    }};
}

proptest! {
    #[test]
    fn ethernet(dst in mac(), src in mac(), vlan in vlan(), ethertype in 0..0x8100u16) {
        let header = Ethernet { dst, src, vlan, ethertype };
        let bytes = round_trip!(Ethernet, header, header.header_len());

        let (theirs, rest) = Ethernet2Header::from_slice(&bytes).unwrap();
        prop_assert_eq!(theirs.destination, dst.0);
        prop_assert_eq!(theirs.source, src.0);
        if let Some(VlanTag { pcp, dei, vid }) = vlan {
            prop_assert_eq!(theirs.ether_type.0, 0x8100);
            let (tag, _) = SingleVlanHeader::from_slice(rest).unwrap();
            prop_assert_eq!(tag.pcp.value(), pcp);
            prop_assert_eq!(tag.drop_eligible_indicator, dei);
            prop_assert_eq!(tag.vlan_id.value(), vid);
            prop_assert_eq!(tag.ether_type.0, ethertype);
        } else {
            prop_assert_eq!(theirs.ether_type.0, ethertype);
        }
    }

    #[test]
    fn ipv4_header(ip in ipv4()) {
        let bytes = round_trip!(Ipv4, Ipv4 { total_len: 20, ..ip }, Ipv4::LEN);
        let (theirs, _) = Ipv4Header::from_slice(&bytes).unwrap();
        prop_assert_eq!(theirs.header_checksum, theirs.calc_header_checksum());

        // Theirs to ours.
        let mut theirs = theirs;
        theirs.total_len = ip.total_len;
        theirs.header_checksum = theirs.calc_header_checksum();
        let mut bytes = theirs.to_bytes().to_vec();
        bytes.resize(ip.total_len.into(), 0);
        prop_assert_eq!(Ipv4::parse(&bytes), Ok((ip, Ipv4::LEN)));
        prop_assert_eq!(theirs.source, ip.src);
        prop_assert_eq!(theirs.destination, ip.dst);
        prop_assert_eq!(theirs.dscp.value(), ip.dscp);
        prop_assert_eq!(theirs.ecn.value(), ip.ecn);
        prop_assert_eq!(theirs.time_to_live, ip.ttl);
        prop_assert_eq!(theirs.identification, ip.identification);
        prop_assert_eq!(theirs.dont_fragment, ip.dont_fragment);
        prop_assert_eq!(theirs.protocol.0, ip.protocol);
    }

    #[test]
    fn ipv4_bit_flips_are_noticed(ip in ipv4(), bit in 0..160usize) {
        let mut bytes = vec![0; 1500];
        ip.emit(&mut bytes).unwrap();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Ipv4::parse(&bytes).is_err());
    }

    #[test]
    fn ipv6_header(ip in ipv6()) {
        let bytes = round_trip!(Ipv6, Ipv6 { payload_len: 0, ..ip }, Ipv6::LEN);
        let (theirs, _) = Ipv6Header::from_slice(&bytes).unwrap();
        prop_assert_eq!(theirs.source, ip.src);
        prop_assert_eq!(theirs.destination, ip.dst);
        prop_assert_eq!(theirs.traffic_class, ip.traffic_class);
        prop_assert_eq!(theirs.flow_label.value(), ip.flow_label);
        prop_assert_eq!(theirs.hop_limit, ip.hop_limit);
        prop_assert_eq!(theirs.next_header.0, ip.next_header);

        let mut bytes = Ipv6Header { payload_length: ip.payload_len, ..theirs }.to_bytes().to_vec();
        bytes.resize(Ipv6::LEN + usize::from(ip.payload_len), 0);
        prop_assert_eq!(Ip::parse(&bytes), Ok((Ip::V6(ip), Ipv6::LEN)));
    }

    #[test]
    fn udp((src_port, dst_port, checksum) in any::<(u16, u16, u16)>(), len in 8..=u16::MAX) {
        let bytes = round_trip!(Udp, Udp { src_port, dst_port, len, checksum }, Udp::LEN);
        let (theirs, _) = UdpHeader::from_slice(&bytes).unwrap();
        let expected = UdpHeader {
            source_port: src_port,
            destination_port: dst_port,
            length: len,
            checksum,
        };
        prop_assert_eq!(theirs, expected);
    }

    #[test]
    fn transport_headers(
        (bth, deth, reth, aeth) in (bth(), deth(), reth(), aeth()),
        (atomic, xrceth, feth) in (atomic(), xrceth(), feth()),
        (original, word) in any::<(u64, u32)>(),
    ) {
        round_trip!(Bth, bth, 12);
        round_trip!(Deth, deth, 8);
        round_trip!(Reth, reth, 16);
        round_trip!(Aeth, aeth, 4);
        round_trip!(AtomicEth, atomic, 28);
        round_trip!(AtomicAckEth, AtomicAckEth { original }, 8);
        round_trip!(ImmDt, ImmDt(word), 4);
        round_trip!(Ieth, Ieth(word), 4);
        round_trip!(XrcEth, xrceth, 4);
        round_trip!(Feth, feth, 4);
    }

    #[test]
    fn gids_choose_the_ip_version(
        (src, dst, tc, hops) in any::<([u8; 16], [u8; 16], u8, u8)>(),
        (src4, dst4, label) in any::<([u8; 4], [u8; 4], u32)>(),
    ) {
        let (src, dst) = (Gid(src), Gid(dst));
        prop_assume!(!src.is_ipv4_mapped() && !dst.is_ipv4_mapped());
        let (src4, dst4) = (Gid::from_ipv4(src4), Gid::from_ipv4(dst4));
        for (from, to, v4) in
            [(src4, dst4, true), (src, dst, false), (src4, dst, false), (src, dst4, false)]
        {
            let ip = Ip::from_gids(from, to, tc, label, hops);
            prop_assert_eq!(matches!(ip, Ip::V4(_)), v4);
            prop_assert_eq!((ip.src_gid(), ip.dst_gid()), (from, to));
            prop_assert_eq!((ip.traffic_class(), ip.hop_limit(), ip.ecn()), (tc, hops, tc & 3));
            prop_assert_eq!(ip.flow_label(), if v4 { 0 } else { label & 0xf_ffff });
            prop_assert_eq!(ip.payload_len(), 0);
            let mut bytes = [0; 40];
            prop_assert_eq!(ip.emit(&mut bytes), Ok(ip.header_len()));
            prop_assert_eq!(Ip::parse(&bytes), Ok((ip, ip.header_len())));
        }
    }

    /// Every parser is total.
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Ethernet::parse(&bytes);
        let _ = Ipv4::parse(&bytes);
        let _ = Ipv6::parse(&bytes);
        let _ = Ip::parse(&bytes);
        let _ = Udp::parse(&bytes);
        let _ = Bth::parse(&bytes);
        let _ = Deth::parse(&bytes);
        let _ = Reth::parse(&bytes);
        let _ = Aeth::parse(&bytes);
        let _ = AtomicEth::parse(&bytes);
        let _ = AtomicAckEth::parse(&bytes);
        let _ = ImmDt::parse(&bytes);
        let _ = Ieth::parse(&bytes);
        let _ = XrcEth::parse(&bytes);
        let _ = Feth::parse(&bytes);
        let _ = faultline_wire::icrc::icrc(&bytes);
    }
}

/// Field positions, once by hand: a round trip alone would not see two fields swapped.
#[test]
fn transport_headers_have_their_bytes_in_order() {
    fn bytes<const N: usize>(emit: impl FnOnce(&mut [u8]) -> Result<usize, WireError>) -> Vec<u8> {
        let mut out = vec![0xa5; N];
        assert_eq!(emit(&mut out), Ok(N));
        out
    }
    let deth = Deth {
        qkey: 0x8001_0000,
        src_qp: 0x01_0203,
    };
    assert_eq!(
        bytes::<8>(|out| deth.emit(out)),
        [0x80, 1, 0, 0, 0, 1, 2, 3]
    );

    let reth = Reth {
        addr: 0x0102_0304_0506_0708,
        rkey: 0x090a_0b0c,
        len: 0x0d0e_0f10,
    };
    let counting: Vec<u8> = (1..=28).collect();
    assert_eq!(bytes::<16>(|out| reth.emit(out)), counting[..16]);

    let atomic = AtomicEth {
        addr: 0x0102_0304_0506_0708,
        rkey: 0x090a_0b0c,
        swap_add: 0x0d0e_0f10_1112_1314,
        compare: 0x1516_1718_191a_1b1c,
    };
    assert_eq!(bytes::<28>(|out| atomic.emit(out)), counting);

    let aeth = Aeth {
        syndrome: faultline_wire::Syndrome::RnrNak { timer: 14 },
        msn: 0x01_0203,
    };
    assert_eq!(bytes::<4>(|out| aeth.emit(out)), [0x2e, 1, 2, 3]);

    let xrc = XrcEth { srqn: 0x01_0203 };
    assert_eq!(bytes::<4>(|out| xrc.emit(out)), [0, 1, 2, 3]);

    let feth = Feth {
        selectivity: Feth::MR,
        placement: Feth::GLOBAL | Feth::PERSISTENT,
    };
    assert_eq!(bytes::<4>(|out| feth.emit(out)), [0, 0, 0, 0x13]);
}

#[test]
fn bth_flags_have_their_bits() {
    use faultline_wire::{Opcode, Psn};
    let base = Bth {
        migration: false,
        pkey: 0,
        ..Bth::new(Opcode::RcSendFirst, 0, Psn::new(0))
    };
    let cases: [(Bth, usize, u8); 9] = [
        (
            Bth {
                solicited: true,
                ..base
            },
            1,
            0x80,
        ),
        (
            Bth {
                migration: true,
                ..base
            },
            1,
            0x40,
        ),
        (Bth { pad: 3, ..base }, 1, 0x30),
        (Bth { version: 9, ..base }, 1, 0x09),
        (Bth { fecn: true, ..base }, 4, 0x80),
        (Bth { becn: true, ..base }, 4, 0x40),
        (
            Bth {
                dest_qp: 0x80_0000,
                ..base
            },
            5,
            0x80,
        ),
        (
            Bth {
                ack_req: true,
                ..base
            },
            8,
            0x80,
        ),
        (
            Bth {
                psn: Psn::new(1),
                ..base
            },
            11,
            0x01,
        ),
    ];
    for (bth, at, byte) in cases {
        let mut expected = [0; 12];
        expected[at] = byte;
        let mut out = [0xa5; 12];
        bth.emit(&mut out).unwrap();
        assert_eq!(out, expected, "{bth:?}");
    }
}

#[test]
fn values_too_wide_for_their_field_are_refused() {
    use faultline_wire::{Opcode, Psn, Syndrome};
    let mut out = [0; 64];
    let refused = |result: Result<usize, WireError>, name: &str| match result {
        Err(WireError::FieldOutOfRange { field, .. }) => assert_eq!(field, name),
        other => panic!("{name}: {other:?}"),
    };
    let bth = Bth::new(Opcode::RcSendOnly, 1 << 24, Psn::new(0));
    refused(bth.emit(&mut out), "dest_qp");
    refused(
        Bth {
            dest_qp: 0,
            pad: 4,
            ..bth
        }
        .emit(&mut out),
        "pad",
    );
    refused(
        Bth {
            dest_qp: 0,
            version: 16,
            ..bth
        }
        .emit(&mut out),
        "version",
    );
    refused(
        Deth {
            qkey: 0,
            src_qp: 1 << 24,
        }
        .emit(&mut out),
        "src_qp",
    );
    refused(XrcEth { srqn: 1 << 24 }.emit(&mut out), "srqn");
    refused(
        Aeth {
            syndrome: Syndrome::ACK,
            msn: 1 << 24,
        }
        .emit(&mut out),
        "msn",
    );
    refused(
        Feth {
            selectivity: 4,
            placement: 0,
        }
        .emit(&mut out),
        "selectivity",
    );
    refused(
        Feth {
            selectivity: 0,
            placement: 16,
        }
        .emit(&mut out),
        "placement",
    );
    refused(
        Ipv4 {
            dscp: 64,
            ..Ipv4::default()
        }
        .emit(&mut out),
        "dscp",
    );
    refused(
        Ipv4 {
            ecn: 4,
            ..Ipv4::default()
        }
        .emit(&mut out),
        "ecn",
    );
    refused(
        Ipv6 {
            flow_label: 1 << 20,
            ..Ipv6::default()
        }
        .emit(&mut out),
        "flow_label",
    );
    let tagged = |pcp, vid| Ethernet {
        vlan: Some(VlanTag {
            pcp,
            dei: false,
            vid,
        }),
        ..Ethernet::default()
    };
    refused(tagged(8, 0).emit(&mut out), "pcp");
    refused(tagged(0, 4096).emit(&mut out), "vid");
}

#[test]
fn ipv4_fragments_and_options_are_refused() {
    let ip = Ipv4 {
        total_len: 20,
        protocol: 17,
        ttl: 1,
        ..Ipv4::default()
    };
    let with = |at: usize, value: u16| {
        let mut bytes = [0; 24];
        ip.emit(&mut bytes).unwrap();
        bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        bytes[10..12].fill(0);
        let header = Ipv4Header::from_slice(&bytes).unwrap().0;
        bytes[10..12].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
        Ipv4::parse(&bytes)
    };
    assert_eq!(with(6, 0x2000), Err(WireError::Fragment));
    assert_eq!(with(6, 0x0001), Err(WireError::Fragment));
    assert!(with(6, 0x4000).is_ok());
    let mut options = [0; 24];
    ip.emit(&mut options).unwrap();
    options[0] = 0x46;
    assert_eq!(Ipv4::parse(&options), Err(WireError::IpOptions(24)));
    options[0] = 0x44;
    assert_eq!(
        Ipv4::parse(&options),
        Err(WireError::BadLength {
            declared: 16,
            available: 20
        })
    );
    options[0] = 0x55;
    assert_eq!(Ipv4::parse(&options), Err(WireError::BadVersion(5)));
}

#[test]
fn addresses_print_and_classify() {
    let mac = MacAddr([0x02, 0, 0x5e, 0x10, 0xfe, 0x0a]);
    assert_eq!(mac.to_string(), "02:00:5e:10:fe:0a");
    assert!(!mac.is_multicast() && !mac.is_broadcast());
    assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());

    assert_eq!(Gid::link_local(mac).to_string(), "fe80::5eff:fe10:fe0a");
    let group = Gid::from_ipv4([239, 129, 2, 3]);
    assert!(group.is_multicast() && group.is_ipv4_mapped());
    assert_eq!(group.multicast_mac(), Some(MacAddr([1, 0, 0x5e, 1, 2, 3])));
    assert_eq!(group.to_string(), "::ffff:239.129.2.3");
    let group = Gid::from("ff12::1:8203:405".parse::<std::net::Ipv6Addr>().unwrap());
    assert!(group.is_multicast() && !group.is_ipv4_mapped());
    assert_eq!(
        group.multicast_mac(),
        Some(MacAddr([0x33, 0x33, 0x82, 3, 4, 5]))
    );
    assert_eq!(Gid::from_ipv4([192, 0, 2, 1]).multicast_mac(), None);
    assert!(!Gid::from_ipv4([255, 255, 255, 255]).is_multicast());
}
