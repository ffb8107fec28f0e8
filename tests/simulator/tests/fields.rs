//! Fields of frames as other adapters expect them, and frames that are accepted from other adapters.

use faultline_abi::admin::{Counter, SET_GID, SetGid};
use faultline_abi::qp::*;
use faultline_abi::{U16, cqe, event, wqe as wr};
use faultline_simulation::Send;
use faultline_simulator::{Pair, World, expect_cqe, gid6, packet};
use faultline_wire::aeth::{Aeth, NakCode};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ethernet::VlanTag;
use faultline_wire::icrc::{ICRC_LEN, icrc};
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::{Parsed, RoceHeader};
use faultline_wire::udp::{flow_label_for_qpns, src_port_for_flow_label};
use faultline_wire::{Ip, MacAddr, Syndrome, parse};

use crate::common::counter;

const LEN: u64 = 4096;
const VLAN: u16 = 0x123;

fn read(frame: &[u8]) -> Parsed<'_> {
    let packet = parse(frame).unwrap();
    assert!(packet.icrc_ok);
    packet
}

/// Sets the GIDs of both kinds of all hosts, on this VLAN.
fn put_on_vlan(world: &mut World, hosts: usize, vlan: Option<u16>) {
    for host in 0..hosts {
        let at = &mut world.hosts[host];
        for (index, gid) in [(0, at.gid), (1, gid6(at))] {
            let entry = SetGid {
                gid: gid.0,
                mac: at.mac.0,
                vlan: U16::new(vlan.unwrap_or(0xffff)),
                valid: 1,
                ..SetGid::default()
            };
            at.driver.command(SET_GID, index, &entry).unwrap();
        }
    }
}

/// DSCP and ECN are those of the traffic class, the VLAN's priority is the service level, in requests and in responses.
#[test]
fn packets_of_a_connection_have_the_classes_of_its_address_vector() {
    for (sgid_index, vlan) in [(0, None), (1, None), (0, Some(VLAN)), (1, Some(VLAN))] {
        for kind in [QPT_RC, QPT_UC] {
            let mut world = World::new(2, 1);
            put_on_vlan(&mut world, 2, vlan);
            let mut pair = world.connect(kind, LEN, |c| {
                c.sgid_index = sgid_index;
                (c.traffic_class, c.sl, c.flow_label) = (0xb9, 5, 0x1_2345);
            });
            world.start_capture();
            world.post_write(&mut pair, 3000);
            world.run();
            expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
            let frames = world.take_capture();
            let from = |host: usize| frames.iter().filter(|(from, _)| *from == host).count();
            assert_eq!((from(0), from(1) > 0), (3, kind == QPT_RC));
            for (_, frame) in &frames {
                let header = read(frame).header;
                let expected = vlan.map(|vid| VlanTag {
                    pcp: 5,
                    dei: false,
                    vid,
                });
                assert_eq!(header.ethernet.vlan, expected);
                assert_eq!(header.udp_src_port, 0xe341);
                match header.ip {
                    Ip::V4(ip) => assert_eq!((ip.dscp, ip.ecn), (0x2e, 1)),
                    Ip::V6(ip) => {
                        assert_eq!((ip.traffic_class, ip.flow_label), (0xb9, 0x1_2345));
                    }
                }
                let udp = frame.len() - usize::from(u16::from_be_bytes(udp_field(frame, 4)));
                assert_eq!(udp, udp_at(frame));
                assert_eq!(udp_field(frame, 6), [0, 0], "no checksum");
            }
        }
    }
}

fn udp_at(frame: &[u8]) -> usize {
    let header = read(frame).header;
    header.ethernet.header_len() + header.ip.header_len()
}

fn udp_field(frame: &[u8], at: usize) -> [u8; 2] {
    let at = udp_at(frame) + at;
    [frame[at], frame[at + 1]]
}

/// Without a flow label the port follows from the numbers of both queue pairs, so that it is the same in both directions.
#[test]
fn the_source_port_of_a_connection_without_flow_label_is_that_of_its_queue_pairs() {
    let mut world = World::new(2, 1);
    // The numbers of the two ends differ.
    for _ in 0..5 {
        let cq = world.hosts[1].cq(4).unwrap();
        world.hosts[1].qp(QPT_RC, &cq).unwrap();
    }
    for _ in 0..3 {
        let mut pair = world.connect(QPT_RC, LEN, |_| {});
        let [a, b] = [pair.qp[0].qpn, pair.qp[1].qpn];
        assert_ne!(a, b);
        world.start_trace();
        world.post_write(&mut pair, 8);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        let expected = src_port_for_flow_label(flow_label_for_qpns(a, b));
        assert_eq!(u32::from(expected), 0xc000 | (a * b));
        let trace = world.take_trace();
        assert_eq!(trace.len(), 2);
        assert!(trace.iter().all(|(_, h)| h.udp_src_port == expected));
    }
}

#[test]
fn the_source_port_of_a_datagram_is_that_of_its_address_handle_or_queue_pairs() {
    const QKEY: u32 = 7;
    let mut world = World::new(2, 1);
    put_on_vlan(&mut world, 2, Some(VLAN));
    let cq = world.hosts[0].cq(4).unwrap();
    let mut qp = world.hosts[0].qp(QPT_UD, &cq).unwrap();
    world.hosts[0]
        .driver
        .activate(qp.qpn, QPT_UD, QKEY)
        .unwrap();
    for (flow_label, remote_qpn, port) in [(0x1_2345, 9, 0xe341), (0, 9, 0), (0, 10, 0)] {
        let mut path = world.path(1, 0);
        (path.traffic_class, path.sl, path.flow_label) = (0x6a, 3, flow_label);
        let pd = world.hosts[0].pd;
        let ah = world.hosts[0].driver.create_ah(pd, path.av()).unwrap();
        let send = Send {
            opcode: wr::WR_SEND,
            inline: Some(b"x"),
            ah,
            remote_qpn,
            qkey: QKEY,
            ..Send::default()
        };
        world.start_trace();
        world.hosts[0].driver.post_send(&mut qp, &send);
        world.run();
        let [(0, header)] = world.take_trace()[..] else {
            panic!("one datagram");
        };
        let expected = match port {
            0 => src_port_for_flow_label(flow_label_for_qpns(qp.qpn, remote_qpn)),
            port => port,
        };
        assert_eq!(header.udp_src_port, expected);
        assert_eq!(header.ip.traffic_class(), 0x6a);
        assert_eq!(header.ethernet.vlan.unwrap().pcp, 3);
    }
}

/// `mig_req` sets the bit of all packets; either value is accepted from the peer.
#[test]
fn mig_req_is_sent_as_set_and_accepted_with_any_value() {
    for values in [[true, true], [true, false], [false, true], [false, false]] {
        let mut world = World::with_config(2, 1, |config| {
            config.mig_req = values[usize::from(config.mac.0[5]) - 1];
        });
        let mut pair = world.connect(QPT_RC, LEN, |_| {});
        world.start_trace();
        world.start_capture();
        for opcode in [wr::WR_WRITE, wr::WR_READ, wr::WR_FETCH_ADD] {
            let len = if opcode == wr::WR_FETCH_ADD { 8 } else { 3000 };
            post(&mut world, &mut pair, opcode, len);
            world.run();
            expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        }
        let trace = world.take_trace();
        assert!(
            trace
                .iter()
                .all(|(from, h)| h.bth.migration == values[*from])
        );
        assert!(trace.iter().any(|(from, _)| *from == 1));
        for (from, frame) in world.take_capture() {
            assert_eq!(frame[14 + 20 + 8 + 1] & 0x40 != 0, values[from]);
        }
    }
}

fn post(world: &mut World, pair: &mut Pair, opcode: u8, len: u32) {
    let [from, to] = pair.mr;
    let send = Send {
        opcode,
        sges: &[(from.va, len, from.key)],
        // Atomics need an aligned address.
        remote_addr: to.va.next_multiple_of(8),
        rkey: to.key,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
}

/// A packet from host 0 to host 1, made by hand.
fn by_hand(world: &World, bth: Bth) -> RoceHeader {
    let (from, to) = (&world.hosts[0], &world.hosts[1]);
    let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
    RoceHeader::new(to.mac, from.mac, ip, bth)
}

/// A UDP checksum that is right is accepted, as none is; a packet with a wrong one is dropped and counted.
#[test]
fn a_wrong_udp_checksum_drops_the_packet() {
    let mut world = World::new(2, 1);
    let pair = world.connect(QPT_UC, LEN, |_| {});
    let frame = |psn: u32| {
        let bth = Bth::new(Opcode::UcSendOnly, pair.qp[1].qpn, Psn::new(psn));
        packet(&by_hand(&world, bth), &[])
    };
    let frames = [frame(0), frame(1), frame(2)];
    let checksum = |frame: &[u8]| {
        let udp = &frame[34..];
        let pseudo = [
            &frame[26..34],
            &[0, 17],
            &(udp.len() as u16).to_be_bytes(),
            udp,
        ]
        .concat();
        let words = pseudo.chunks(2);
        let sum: u32 = words
            .map(|word| u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from))
            .sum();
        !((sum & 0xffff) + (sum >> 16)) as u16
    };
    for (at, (mut frame, right)) in frames.into_iter().zip([true, false, true]).enumerate() {
        let mut sum = checksum(&frame);
        if !right {
            sum ^= 0x10;
        }
        if at > 0 || !right {
            frame[40..42].copy_from_slice(&sum.to_be_bytes());
        }
        world.inject(0, frame);
    }
    world.run();
    assert_eq!(counter(&mut world, 1, Counter::rx_csum_errors), 1);
    assert_eq!(counter(&mut world, 1, Counter::rx_malformed), 0);
    assert_eq!(counter(&mut world, 1, Counter::rx_icrc_errors), 0);
    // No receive request was posted: each packet that reaches the queue pair counts there.
    assert_eq!(counter(&mut world, 1, Counter::out_of_buffer), 2);
}

/// Acknowledgements count with any credits; this adapter sends that it uses none.
#[test]
fn acknowledgements_with_any_credits_are_accepted() {
    for credits in 0..32 {
        let mut world = World::new(2, 1);
        let mut pair = world.connect(QPT_RC, LEN, |_| {});
        world.start_trace();
        world.lose(|from, _| from == 1);
        for _ in 0..3 {
            post(&mut world, &mut pair, wr::WR_WRITE, 100);
        }
        world.run_for(100_000);
        let sent = world.take_trace();
        let is_unlimited = |(from, header): &(usize, RoceHeader)| {
            *from == 0 || header.aeth.unwrap().syndrome == Syndrome::Ack { credits: 31 }
        };
        assert!(sent.iter().all(is_unlimited));
        let (from, to) = (&world.hosts[1], &world.hosts[0]);
        let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
        for psn in 0..3 {
            let bth = Bth::new(Opcode::RcAcknowledge, pair.qp[0].qpn, Psn::new(psn));
            let mut header = RoceHeader::new(to.mac, from.mac, ip, bth);
            header.aeth = Some(Aeth {
                syndrome: Syndrome::Ack { credits },
                msn: psn + 1,
            });
            world.inject(1, packet(&header, &[]));
        }
        world.run_for(100_000);
        let done = world.completions(0, &mut pair.cq[0]);
        assert_eq!(done.len(), 3);
        assert!(done.iter().all(|cqe| cqe.status == cqe::SUCCESS));
    }
}

/// The hop limit of an address vector without one is not 0.
#[test]
fn a_path_without_hop_limit_has_the_default() {
    let mut world = World::new(2, 1);
    let cq = world.hosts[0].cq(4).unwrap();
    let mut qp = world.hosts[0].qp(QPT_UD, &cq).unwrap();
    world.hosts[0].driver.activate(qp.qpn, QPT_UD, 1).unwrap();
    let av = AddressVector {
        hop_limit: 0,
        ..world.path(1, 0).av()
    };
    let pd = world.hosts[0].pd;
    let ah = world.hosts[0].driver.create_ah(pd, av).unwrap();
    world.start_trace();
    let send = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"x"),
        ah,
        remote_qpn: 5,
        qkey: 1,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut qp, &send);
    world.run();
    let header = world.take_trace()[0].1;
    assert_eq!(header.ip.hop_limit(), 64);
    assert_eq!(header.ethernet.dst, MacAddr([2, 0, 0, 0, 0, 2]));
}

/// The reserved opcodes of the RC service (IBTA volume 1, table 38).
const RESERVED: [u8; 7] = [0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1e, 0x1f];

/// A packet from host 0 with this value as its opcode, correct down to the checksum.
fn with_opcode(world: &World, qpn: u32, psn: u32, opcode: u8) -> Vec<u8> {
    let bth = Bth::new(Opcode::RcSendOnly, qpn, Psn::new(psn));
    let mut frame = packet(&by_hand(world, bth), &[1; 64]);
    frame[42] = opcode;
    let end = frame.len() - ICRC_LEN;
    let sum = icrc(&frame[14..end]).unwrap();
    frame[end..].copy_from_slice(&sum.to_le_bytes());
    frame
}

#[test]
fn a_reserved_opcode_ends_a_reliable_connection() {
    for opcode in RESERVED {
        let mut world = World::new(2, 1);
        let pair = world.connect(QPT_RC, LEN, |_| {});
        let qpn = pair.qp[1].qpn;
        let state = |world: &mut World| world.hosts[1].driver.query_qp(qpn).unwrap().state;
        world.start_capture();
        // Not the expected one: a gap in the sequence is reported first, and an old packet only acknowledged.
        world.inject(0, with_opcode(&world, qpn, 3, opcode));
        world.inject(0, with_opcode(&world, qpn, 0xff_fffe, opcode));
        let mut broken = with_opcode(&world, qpn, 0, opcode);
        broken[60] ^= 1;
        world.inject(0, broken);
        world.run();
        assert_eq!(state(&mut world), QPS_RTS, "{opcode:#x}");
        world.inject(0, with_opcode(&world, qpn, 0, opcode));
        world.run();
        assert_eq!(state(&mut world), QPS_ERR, "{opcode:#x}");
        let sent = world.take_capture().into_iter();
        let answers = sent.filter(|(from, _)| *from == 1);
        let syndromes: Vec<_> = answers
            .map(|(_, f)| read(&f).header.aeth.unwrap())
            .collect();
        let codes: Vec<_> = syndromes.iter().map(|aeth| aeth.syndrome).collect();
        let nak = |code| Syndrome::Nak(code);
        assert_eq!(codes.first(), Some(&nak(NakCode::PsnSequenceError)));
        assert_eq!(codes.last(), Some(&nak(NakCode::InvalidRequest)));
        assert_eq!(counter(&mut world, 1, Counter::resp_invalid_request), 1);
        assert_eq!(counter(&mut world, 1, Counter::rx_malformed), 1);
        let events = world.hosts[1].driver.async_events();
        assert!(events.contains(&(event::QP_REQUEST_ERROR, qpn)));
    }
}

/// Other services drop it, and so does a connection for which it is not meant.
#[test]
fn a_reserved_opcode_of_another_service_is_dropped() {
    for (kind, opcode) in [
        (QPT_UC, 0x35),
        (QPT_RC, 0x7f),
        (QPT_RC, 0xbf),
        (QPT_UC, 0x1f),
        (QPT_RC, 0x4f),
    ] {
        let mut world = World::new(2, 1);
        let pair = world.connect(kind, LEN, |_| {});
        let qpn = pair.qp[1].qpn;
        world.start_capture();
        world.inject(0, with_opcode(&world, qpn, 0, opcode));
        world.run();
        let sent = world.take_capture();
        assert!(sent.iter().all(|(from, _)| *from == 0), "{opcode:#x}");
        let dropped = counter(&mut world, 1, Counter::rx_malformed)
            + counter(&mut world, 1, Counter::rx_bad_qp);
        assert_eq!(dropped, 1, "{kind} {opcode:#x}");
        assert_eq!(
            world.hosts[1].driver.query_qp(qpn).unwrap().state,
            QPS_RTS,
            "{opcode:#x}"
        );
    }
}
