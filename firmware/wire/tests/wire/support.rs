//! Strategies for packets, and a second implementation of the iCRC.

use etherparse::{
    IpDscp, IpEcn, Ipv4Header, Ipv6FlowLabel, Ipv6Header, NetHeaders, PacketHeaders,
    TransportHeader,
};
use faultline_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, EtherType, Ethernet, Feth, Headers, Ip, Ipv4, Ipv6,
    MacAddr, Opcode, Psn, Reth, RoceHeader, Syndrome, VlanTag, XrcEth,
};
use proptest::prelude::*;

pub(crate) fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

pub(crate) fn vlan() -> impl Strategy<Value = Option<VlanTag>> {
    proptest::option::of(
        (0..8u8, any::<bool>(), 0..4096u16).prop_map(|(pcp, dei, vid)| VlanTag { pcp, dei, vid }),
    )
}

pub(crate) fn ipv4() -> impl Strategy<Value = Ipv4> {
    (
        any::<([u8; 4], [u8; 4], u8, u16, bool, u8)>(),
        0..64u8,
        0..4u8,
        20..=1500u16,
    )
        .prop_map(
            |((src, dst, ttl, identification, dont_fragment, protocol), dscp, ecn, total_len)| {
                Ipv4 {
                    src,
                    dst,
                    dscp,
                    ecn,
                    ttl,
                    identification,
                    dont_fragment,
                    protocol,
                    total_len,
                }
            },
        )
}

pub(crate) fn ipv6() -> impl Strategy<Value = Ipv6> {
    (
        any::<([u8; 16], [u8; 16], u8, u8, u8)>(),
        0..1u32 << 20,
        0..=1500u16,
    )
        .prop_map(
            |((src, dst, traffic_class, hop_limit, next_header), flow_label, payload_len)| Ipv6 {
                src,
                dst,
                traffic_class,
                flow_label,
                hop_limit,
                next_header,
                payload_len,
            },
        )
}

pub(crate) fn ip() -> impl Strategy<Value = Ip> {
    prop_oneof![ipv4().prop_map(Ip::V4), ipv6().prop_map(Ip::V6)]
}

pub(crate) fn opcode() -> impl Strategy<Value = Opcode> {
    proptest::sample::select(Opcode::ALL)
}

pub(crate) fn bth() -> impl Strategy<Value = Bth> {
    (
        opcode(),
        any::<([bool; 5], u16, u32)>(),
        0..4u8,
        0..16u8,
        0..1u32 << 24,
    )
        .prop_map(|(opcode, (flags, pkey, psn), pad, version, dest_qp)| Bth {
            opcode,
            solicited: flags[0],
            migration: flags[1],
            pad,
            version,
            pkey,
            fecn: flags[2],
            becn: flags[3],
            dest_qp,
            ack_req: flags[4],
            psn: Psn::new(psn),
        })
}

pub(crate) fn deth() -> impl Strategy<Value = Deth> {
    (any::<u32>(), 0..1u32 << 24).prop_map(|(qkey, src_qp)| Deth { qkey, src_qp })
}

pub(crate) fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(addr, rkey, len)| Reth { addr, rkey, len })
}

pub(crate) fn aeth() -> impl Strategy<Value = Aeth> {
    (any::<u8>(), 0..1u32 << 24).prop_map(|(syndrome, msn)| Aeth {
        syndrome: Syndrome::from_u8(syndrome),
        msn,
    })
}

pub(crate) fn atomic() -> impl Strategy<Value = AtomicEth> {
    any::<(u64, u32, u64, u64)>().prop_map(|(addr, rkey, swap_add, compare)| AtomicEth {
        addr,
        rkey,
        swap_add,
        compare,
    })
}

pub(crate) fn xrceth() -> impl Strategy<Value = XrcEth> {
    (0..1u32 << 24).prop_map(|srqn| XrcEth { srqn })
}

pub(crate) fn feth() -> impl Strategy<Value = Feth> {
    (0..4u8, 0..16u8).prop_map(|(selectivity, placement)| Feth {
        selectivity,
        placement,
    })
}

/// A whole header, with just the extended headers of its opcode.
pub(crate) fn roce_header() -> impl Strategy<Value = RoceHeader> {
    let l2 = (mac(), mac(), vlan(), ip(), any::<u16>(), bth());
    let ext = (
        deth(),
        reth(),
        aeth(),
        atomic(),
        any::<(u64, u32, u32)>(),
        xrceth(),
        feth(),
    );
    (l2, ext).prop_map(|((dst, src, vlan, ip, udp_src_port, bth), ext)| {
        let (deth, reth, aeth, atomic, (original, imm, ieth), xrceth, feth) = ext;
        let has = |headers: Headers| bth.opcode.has(headers);
        let ethertype = match ip {
            Ip::V4(_) => EtherType::IPV4,
            Ip::V6(_) => EtherType::IPV6,
        };
        RoceHeader {
            ethernet: Ethernet {
                dst,
                src,
                vlan,
                ethertype,
            },
            ip,
            udp_src_port,
            bth: Bth { version: 0, ..bth },
            deth: has(Headers::DETH).then_some(deth),
            reth: has(Headers::RETH).then_some(reth),
            aeth: has(Headers::AETH).then_some(aeth),
            atomic: has(Headers::ATOMIC_ETH).then_some(atomic),
            atomic_ack: has(Headers::ATOMIC_ACK_ETH).then_some(AtomicAckEth { original }),
            imm: has(Headers::IMM).then_some(imm),
            ieth: has(Headers::IETH).then_some(ieth),
            xrceth: has(Headers::XRCETH).then_some(xrceth),
            feth: has(Headers::FETH).then_some(feth),
        }
    })
}

/// Bytes that depend on their position.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 31 + (at >> 8) * 7 + 1) as u8)
        .collect()
}

/// A sealed frame. The buffer is dirty beforehand, so that nothing may rely on zeroes.
pub(crate) fn build(header: &RoceHeader, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xa5; header.frame_len(payload.len())];
    let at = header.emit(payload.len(), &mut frame).unwrap();
    assert_eq!(at, header.header_len());
    frame[at..at + payload.len()].copy_from_slice(payload);
    faultline_wire::seal(&mut frame).unwrap();
    frame
}

/// The iCRC of a frame by other means than the crate's: etherparse finds and rewrites the fields
/// by name, a table-free CRC of the `crc` crate runs over the result. `frame` has no Ethernet
/// padding.
pub(crate) fn reference_icrc(frame: &[u8]) -> u32 {
    const CRC: crc::Crc<u32, crc::NoTable> =
        crc::Crc::<u32, crc::NoTable>::new(&crc::CRC_32_ISO_HDLC);
    let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let mut masked = vec![0xff; 8];
    match packet.net {
        Some(NetHeaders::Ipv4(ip, _)) => Ipv4Header {
            dscp: IpDscp::try_new(0x3f).unwrap(),
            ecn: IpEcn::try_new(3).unwrap(),
            time_to_live: 0xff,
            header_checksum: 0xffff,
            ..ip
        }
        .write_raw(&mut masked)
        .unwrap(),
        Some(NetHeaders::Ipv6(ip, _)) => Ipv6Header {
            traffic_class: 0xff,
            flow_label: Ipv6FlowLabel::try_new(0xf_ffff).unwrap(),
            hop_limit: 0xff,
            ..ip
        }
        .write(&mut masked)
        .unwrap(),
        other => panic!("not IP: {other:?}"),
    }
    let Some(TransportHeader::Udp(mut udp)) = packet.transport else {
        panic!("not UDP");
    };
    udp.checksum = 0xffff;
    udp.write(&mut masked).unwrap();
    let bth_at = masked.len();
    let transport = packet.payload.slice();
    masked.extend_from_slice(&transport[..transport.len() - 4]);
    masked[bth_at + 4] = 0xff;
    CRC.checksum(&masked)
}
